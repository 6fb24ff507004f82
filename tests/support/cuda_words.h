/* Switches of a CUDA backend for test programs, which have no flags for them: GR_TEST_CUDA holds
 * words of the table below, with commas between them, for example no-pdl,check. Another word ends
 * the program. */
#ifndef TESTS_SUPPORT_CUDA_WORDS_H
#define TESTS_SUPPORT_CUDA_WORDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "gr/backend.h"

/* The word, the field of struct gr_device_opt and struct gr_session_params, and its value. */
#define CUDA_WORDS(WORD)                                                                           \
    WORD("no-graphs", no_graphs, true)                                                             \
    WORD("no-pdl", no_pdl, true)                                                                   \
    WORD("no-sm90", no_sm90, true)                                                                 \
    WORD("no-fuse", no_fuse, true)                                                                 \
    WORD("check", check_counters, true)                                                            \
    WORD("own", matmul, 1)                                                                         \
    WORD("cublas", matmul, 2)

/* `opt` with what GR_TEST_CUDA adds. */
static inline struct gr_device_opt cuda_words(struct gr_device_opt opt)
{
    const char *at = getenv("GR_TEST_CUDA");
    for (size_t n; at && *at; at += n + (at[n] == ',')) {
        bool known = false;
        n = strcspn(at, ",");
#define WORD(word, field, value)                                                                   \
    if (n == sizeof word - 1 && !memcmp(at, word, n))                                              \
        known = true, opt.field = value;
        CUDA_WORDS(WORD)
#undef WORD
        if (known)
            continue;
        fprintf(stderr, "GR_TEST_CUDA: '%.*s' is none of", (int)n, at);
#define WORD(word, field, value) fputs(" " word, stderr);
        CUDA_WORDS(WORD)
#undef WORD
        fputc('\n', stderr);
        exit(2);
    }
    return opt;
}

/* The same of a session. */
static inline void cuda_words_session(struct gr_session_params *p)
{
    const struct gr_device_opt opt = cuda_words((struct gr_device_opt){0});
#define WORD(word, field, value) p->field = opt.field == (value) ? (value) : p->field;
    CUDA_WORDS(WORD)
#undef WORD
}

#endif
