/* The tiny models whose vectors another implementation computed, and the session it ran. */
#ifndef TESTS_SUPPORT_ENCODERS_H
#define TESTS_SUPPORT_ENCODERS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "support/tiny.h"

static const char *const encoder_arch[] = {
    "bert",        "nomic-bert", "nomic-bert-moe", "jina-bert-v2",    "jina-bert-v3",
    "modern-bert", "neo-bert",   "eurobert",       "gemma-embedding", "llama-embed",
    "t5encoder",   "llama",      "qwen3"};
#define ENCODER_N (int)(sizeof encoder_arch / sizeof *encoder_arch)

static inline void encoder_edit(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[64];
    snprintf(key, sizeof key, "%s.attention.causal", t->arch->name);
    cr_assert_eq(gr_gguf_set_bool(w, key, false), 0);
}

/* The i-th model: as wide as its heads side by side, which the other implementation asks for. */
static inline struct tiny encoder_model(int i)
{
    const char *a = encoder_arch[i];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){a, strlen(a)}));
    t.seed = 11;
    t.n_embd = t.n_head * t.d_head;
    if (t.arch->no_logits)
        t.edit = encoder_edit;
    if (t.arch->norm == GR_NORM_LAYER ||
        tiny_has(t.arch, GR_W_ENC_ATTN_Q)) /* it knows no groups of heads there */
        t.n_head_kv = t.n_head;
    t.n_expert = strstr(a, "-moe") ? 3 : 0;
    return t;
}

#endif
