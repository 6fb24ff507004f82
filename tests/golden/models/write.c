/* write_tiny DIR: writes the models of models/golden.h for make.py, and adapters of some of them as
 * NAME.gguf.0 and NAME.gguf.1; write_tiny DIR encoders: the models of models/encoders.h. */
#include <stdio.h>

#include "models/encoders.h"
#include "models/golden.h"

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

int main(int argc, char **argv)
{
    bool encoders = argc == 3 && strcmp(argv[2], "encoders") == 0;
    if (argc != 2 + encoders)
        return fprintf(stderr, "usage: write_tiny DIR [encoders]\n"), 2;
    for (int i = 0; i < (encoders ? ENCODER_N : GOLDEN_N); i++) {
        char name[32], path[512];
        struct tiny t = encoders ? encoder_model(i) : golden_model(i, name);
        t.dir = argv[1]; /* a rename stays inside one file system */
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], encoders ? t.arch->name : name);
        if (rename(tiny_write(&t, NULL), path) != 0)
            return perror(path), 1;
        if (!encoders && golden_has_adapters(name) && write_adapters(path))
            return 1;
    }
    return 0;
}
