/* write_tiny DIR: writes the models of models/golden.h for make.py, and adapters of some of them as
 * NAME.gguf.0 and NAME.gguf.1; write_tiny DIR encoders: the models of models/encoders.h; write_tiny
 * DIR encoder-decoder: those of models/encoder_decoder.h. */
#include <stdio.h>

#include "support/encoder_decoder.h"
#include "support/encoders.h"
#include "support/golden.h"

static int write_adapters(const char *path)
{
    static struct adapter a;
    struct gr_model *m;
    char file[520];
    if (gr_model_open(&m, path, NULL))
        return fprintf(stderr, "%s\n", gr_error_message()), 1;
    for (int k = 0; k < GOLDEN_ADAPTERS; k++) {
        snprintf(file, sizeof file, "%s.%d", path, k);
        golden_adapter(&a, k, m, file);
    }
    gr_model_close(&m);
    return 0;
}

/* A rename stays inside one file system. */
static int write_one(struct tiny t, char *dir, const char *path)
{
    t.dir = dir;
    return rename(tiny_write(&t, NULL), path) ? perror(path), 1 : 0;
}

static int write_encoder_decoder(char *dir)
{
    int rc = 0;
    for (int i = 0; i < ENCODER_DECODER_N && !rc; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.gguf", dir, encoder_decoder_name[i]);
        rc = write_one(encoder_decoder_model(i), dir, path);
    }
    return rc;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[2], "encoder-decoder") == 0)
        return write_encoder_decoder(argv[1]);
    bool encoders = argc == 3 && strcmp(argv[2], "encoders") == 0;
    if (argc != 2 + encoders)
        return fprintf(stderr, "usage: write_tiny DIR [encoders | encoder-decoder]\n"), 2;
    for (int i = 0; i < (encoders ? ENCODER_N : GOLDEN_N); i++) {
        char name[32], path[512];
        struct tiny t = encoders ? encoder_model(i) : golden_model(i, name);
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], encoders ? t.arch->name : name);
        if (write_one(t, argv[1], path))
            return 1;
        if (!encoders && golden_has_adapters(name) && write_adapters(path))
            return 1;
    }
    return 0;
}
