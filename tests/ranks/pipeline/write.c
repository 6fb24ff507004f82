/* write_deep DIR: writes tiny random models with more layers than a pipeline of eight stages needs,
 * one of each kind of cache and layer, as DIR/<architecture>.gguf. */
#include <stdio.h>
#include <string.h>

#include "support/tiny.h"

enum { N_LAYER = 9 };

/* KV heads of each layer of a family that has layers with a state: 0 = such a layer. */
static const int32_t mixed[N_LAYER] = {0, 2, 0, 0, 2, 0, 0, 2, 0};

static const struct {
    const char *arch;
    bool experts;
    const int32_t *heads_kv;
} deep[] = {{"llama", false, NULL},     {"qwen3moe", true, NULL}, {"gemma3", false, NULL},
            {"gpt-oss", true, NULL},    {"gpt2", false, NULL},    {"deepseek2", true, NULL},
            {"mamba2", false, NULL},    {"jamba", true, mixed},   {"qwen3next", true, mixed},
            {"falcon-h1", false, NULL}, {"qwen2vl", false, NULL}, {"dream", false, NULL}};

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: write_deep DIR\n"), 2;
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        const char *name = deep[i].arch;
        char path[512];
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){name, strlen(name)}));
        t.n_layer = N_LAYER, t.heads_kv = deep[i].heads_kv, t.n_expert = deep[i].experts ? 3 : 0;
        t.dir = argv[1]; /* a rename stays inside one file system */
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], name);
        if (rename(tiny_write(&t, NULL), path) != 0)
            return perror(path), 1;
    }
    return 0;
}
