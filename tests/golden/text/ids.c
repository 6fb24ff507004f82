/* Tokens of many texts with the vocabulary of a file, for scripts that compare tokenizers.
 * usage: text_ids MODEL.gguf PARSE_SPECIAL; a text in hexadecimal digits on each line of the input
 * gives its ids on a line of the output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gr/status.h"
#include "text/vocab.h"

static int hex(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The bytes of the line, in place; returns their number. */
static size_t unhex(char *line)
{
    size_t n = 0;
    for (; line[2 * n] && line[2 * n] != '\n'; n++)
        line[n] = (char)(hex(line[2 * n]) * 16 + hex(line[2 * n + 1]));
    return n;
}

static int run(const struct gr_vocab *v, bool parse_special)
{
    struct gr_vec ids = {0};
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    while (!rc && getline(&line, &cap, stdin) > 0) {
        ids.n = 0;
        rc = gr_tokenize(v, line, unhex(line), false, parse_special, &ids);
        for (size_t i = 0; i < ids.n; i++)
            printf("%s%d", i ? " " : "", ((int32_t *)ids.data)[i]);
        putchar('\n');
    }
    gr_vec_fini(&ids);
    free(line);
    return rc;
}

int main(int argc, char **argv)
{
    struct gr_gguf *g = NULL;
    struct gr_vocab *v = NULL;
    if (argc != 3)
        return 2;
    int rc = gr_gguf_open(&g, argv[1], true);
    if (!rc)
        rc = gr_vocab_open(&v, g);
    if (!rc)
        rc = run(v, atoi(argv[2]));
    if (rc)
        fprintf(stderr, "%s\n", gr_error());
    gr_vocab_close(&v);
    gr_gguf_close(&g);
    return rc != 0;
}
