/* write_tiny DIR: writes the models of models/golden.h for make.py. */
#include <stdio.h>

#include "models/golden.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: write_tiny DIR\n"), 2;
    for (int i = 0; i < GOLDEN_N; i++) {
        char name[32], path[512];
        struct tiny t = golden_model(i, name);
        t.dir = argv[1]; /* a rename stays inside one file system */
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], name);
        if (rename(tiny_write(&t, NULL), path) != 0)
            return perror(path), 1;
    }
    return 0;
}
