/* The tiny models whose logits another implementation computed, and the session it ran. */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

#include <stdio.h>
#include <string.h>

#include "support/adapter.h"
#include "support/tiny.h"

/* The architecture of each, and the rest of its name. Without families whose positions the other
 * implementation cannot move (M-RoPE) or moves in layers that have none (cohere2, smollm3). */
static const char *const golden_arch[][2] = {{"llama", ""},
                                             {"llama", "-moe"},
                                             {"qwen2", ""},
                                             {"qwen3", ""},
                                             {"qwen3moe", ""},
                                             {"gemma2", ""},
                                             {"gemma3", ""},
                                             {"phi3", ""},
                                             {"gpt2", ""},
                                             {"mpt", ""},
                                             {"falcon", ""},
                                             {"gpt-oss", ""},
                                             {"deepseek2", ""},
                                             {"openelm", ""},
                                             {"internlm2", ""},
                                             {"xverse", ""},
                                             {"command-r", ""},
                                             {"olmo2", ""},
                                             {"exaone4", ""},
                                             {"stablelm", ""},
                                             {"orion", ""},
                                             {"gptneox", ""},
                                             {"phi2", ""},
                                             {"starcoder", ""},
                                             {"starcoder2", ""},
                                             {"bloom", ""},
                                             {"nemotron", ""},
                                             {"granite", ""},
                                             {"minicpm", ""},
                                             {"deepseek", ""},
                                             {"bailingmoe", ""},
                                             {"qwen2moe", ""},
                                             {"gemma", ""},
                                             {"llama", "-scaled"},
                                             {"qwen3moe", "-scaled"},
                                             {"bitnet", ""},
                                             {"nanbeige", ""},
                                             {"hrm_text", ""}};
#define GOLDEN_N (int)(sizeof golden_arch / sizeof *golden_arch)

/* The i-th model and its name, "llama", "llama-moe" and so on. */
static inline struct tiny golden_model(int i, char name[32])
{
    const char *a = golden_arch[i][0], *more = golden_arch[i][1];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){a, strlen(a)}));
    bool lead = strncmp(a, "deepseek", 8) == 0; /* a layer without experts in front */
    t.seed = 7;
    t.first_expert = lead;
    t.fused = t.arch->norm == GR_NORM_LAYER || tiny_has(t.arch, GR_W_ATTN_Q_A);
    t.n_expert = lead || tiny_needs_experts(t.arch) || strcmp(more, "-moe") == 0 ? 3 : 0;
    /* the other implementation adds a bias of the feed-forward before it multiplies */
    t.scaled = strcmp(more, "-scaled") == 0;
    /* and has gemma3's second matrix behind a pooling in embedding models alone */
    t.no_optional = t.scaled || strcmp(a, "gemma3") == 0;
    snprintf(name, 32, "%s%s", a, more);
    return t;
}

/* True when adapters of the i-th model are computed as well: fused matrices, experts, scaled
 * embeddings, biases. */
static inline bool golden_has_adapters(const char *name)
{
    static const char *const names[] = {"llama", "llama-moe", "qwen3moe", "phi3", "phi2", "gemma2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

enum { GOLDEN_ADAPTERS = 2 };

/* Adapter k of two, written to `path`: of all matrices, and of half of them (scales: make.py). */
static inline void golden_adapter(struct adapter *a, int k, const struct gr_model *m,
                                  const char *path)
{
    *a = (struct adapter){.alpha = k ? 0 : 3, .scale = k ? -0.5f : 0.75f};
    adapter_make(a, m, (uint64_t)(21 + k), (uint32_t)(1 + k), path);
    adapter_write(a);
}

#endif
