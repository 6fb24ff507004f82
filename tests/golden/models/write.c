/* write_tiny DIR: writes the models of models/golden.h for make.py; write_tiny DIR encoders: those
 * of models/encoders.h. */
#include <stdio.h>

#include "models/encoders.h"
#include "models/golden.h"

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
    }
    return 0;
}
