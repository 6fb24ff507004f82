/* The shared vocabularies against the ids that the models' own tokenizers give. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "gr/status.h"
#include "util.h"

#define BETWEEN "\n__ggml_vocab_test__\n"

static char *slurp(const char *name, const char *ending, size_t *n)
{
    char file[128], *data;
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf.%s", name, ending);
    const char *path = shared_path(file);
    cr_assert(path, "%s is not there", file);
    cr_assert_eq(gr_file_slurp(path, 1 << 20, &data, n), 0, "%s", gr_error());
    return data;
}

/* Every text of the .inp file gives the ids of its line in the .out file. */
static void check(const char *name)
{
    struct gr_vocab *v = shared_vocab(name);
    size_t n_in, n_out, count = 0;
    char *in = slurp(name, "inp", &n_in), *out = slurp(name, "out", &n_out), *line = out;
    for (char *text = in, *next; text; text = next, count++) {
        char *end = strstr(text, BETWEEN), *line_end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - text) : strlen(text);
        next = end ? end + strlen(BETWEEN) : NULL;
        struct gr_vec ids = tokenize(v, text, n, false, false);
        for (size_t i = 0; i < ids.n; i++)
            cr_assert_eq(strtol(line, &line, 10), ((int32_t *)ids.data)[i],
                         "%s, text %zu (%s), token %zu", name, count, gr_quote(text, n), i);
        cr_assert(!line_end || line == line_end || strspn(line, " ") == (size_t)(line_end - line),
                  "%s, text %zu (%s): more ids are expected than %zu", name, count,
                  gr_quote(text, n), ids.n);
        line = line_end ? line_end + 1 : line + strlen(line);
        gr_vec_fini(&ids);
    }
    cr_assert_gt(count, 40, "%s has only %zu texts", name, count);
    gr_free(in);
    gr_free(out);
    gr_vocab_close(&v);
}

Test(vectors, bert_bge)
{
    check("bert-bge");
}
Test(vectors, deepseek_llm)
{
    check("deepseek-llm");
}
Test(vectors, gpt_2)
{
    check("gpt-2");
}
Test(vectors, llama_bpe)
{
    check("llama-bpe");
}
Test(vectors, llama_spm)
{
    check("llama-spm");
}
Test(vectors, phi_3)
{
    check("phi-3");
}
Test(vectors, qwen2)
{
    check("qwen2");
}
