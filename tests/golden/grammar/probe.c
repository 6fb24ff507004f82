/* Grammars and texts, for scripts that compare them with other programs.
 * usage: grammar_probe MODEL.gguf, or - for a vocabulary of single bytes. Lines of the input:
 *   gbnf HEX, schema HEX   reads a grammar: "ok" and its microseconds of the processor, or "error"
 * and the message text HEX               1 when the grammar allows the text, else 0; byte by byte
 * (-) or tokenized walk SEED N            a text of at most N tokens drawn from the masks, in
 * hexadecimal digits, behind "ended" or "cut"; texts are drawn to an end where there is one time
 * SEED N            microseconds of the processor for each mask and each accepted token of such a
 * text It begins with "ready", the number of tokens and the microseconds of their trie. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "gguf/gguf.h"
#include "gr/sample.h"
#include "gr/status.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "support/byte_vocab.h"

struct probe {
    struct gr_vocab *vocab;
    struct gr_token_trie *trie;
    struct gr_grammar *grammar;
    struct gr_grammar_state *state;
    bool bytes;
    struct gr_vec out; /* char */
};

/* Time of this thread on a processor, which others on the machine do not add to. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int hex(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static size_t unhex(char *line)
{
    size_t n = 0;
    for (; line[2 * n] > ' '; n++)
        line[n] = (char)(hex(line[2 * n]) * 16 + hex(line[2 * n + 1]));
    return n;
}

static void read_grammar(struct probe *p, char *text, bool schema)
{
    size_t n = unhex(text);
    gr_grammar_state_free(&p->state);
    gr_grammar_free(&p->grammar);
    int64_t begin = cpu_ns();
    int rc =
        (schema ? gr_grammar_from_schema : gr_grammar_from_gbnf)(&p->grammar, text, n, p->trie);
    int64_t ns = cpu_ns() - begin;
    if (!rc)
        rc = gr_grammar_state_new(&p->state, p->grammar);
    if (rc)
        printf("error %s\n", gr_error());
    else
        printf("ok %.1f\n", (double)ns / 1e3);
}

static int accept_text(struct probe *p, const char *text, size_t n)
{
    struct gr_vec ids = {0};
    int rc = 0;
    if (!p->bytes)
        rc = gr_tokenize(p->vocab, text, n, false, false, &ids);
    for (size_t i = 0; i < (p->bytes ? n : ids.n) && !rc; i++)
        rc = gr_grammar_accept(p->state, p->bytes ? (uint8_t)text[i] : ((int32_t *)ids.data)[i]);
    gr_vec_fini(&ids);
    return rc;
}

static void check_text(struct probe *p, char *text)
{
    size_t n = unhex(text);
    gr_grammar_state_reset(p->state);
    int rc = accept_text(p, text, n);
    printf("%d\n", !rc && gr_grammar_may_end(p->state));
}

/* Draws one of the allowed tokens; with `ending` one that ends the text, where there is one. */
static int32_t draw(const struct probe *p, const uint32_t *mask, struct gr_rng *rng, bool ending)
{
    int32_t n = 0, id = -1;
    for (int pass = ending ? 0 : 1; pass < 2 && id < 0; pass++)
        for (int32_t i = 0; i < p->trie->n_vocab; i++)
            if (gr_sample_allowed(mask, i) && (pass || gr_vocab_is_eog(p->vocab, i)) &&
                gr_rng_below(rng, (uint32_t)++n) == 0)
                id = i;
    return id;
}

static void walk(struct probe *p, uint64_t seed, int n, bool timed)
{
    struct gr_rng rng = gr_rng_new(seed);
    const uint32_t *mask;
    bool ended = false;
    int rc = 0;
    p->out.n = 0;
    gr_grammar_state_reset(p->state);
    for (int i = 0; i < n && !rc && !ended; i++) {
        const char *piece;
        size_t n_piece;
        int64_t begin = cpu_ns();
        rc = gr_grammar_allowed(p->state, &mask);
        int64_t middle = cpu_ns();
        int32_t id = rc ? -1 : draw(p, mask, &rng, i > n / 2 || gr_rng_below(&rng, 4) == 0);
        int64_t drawn = cpu_ns();
        if (!rc)
            rc = gr_grammar_accept(p->state, id);
        if (timed)
            printf("%.2f %.2f ", (double)(middle - begin) / 1e3, (double)(cpu_ns() - drawn) / 1e3);
        ended = !rc && gr_vocab_is_eog(p->vocab, id);
        if (!rc && !ended && !gr_vocab_piece(p->vocab, id, false, &piece, &n_piece))
            rc = gr_vec_append(&p->out, piece, n_piece, 1);
    }
    if (!timed)
        printf("%s ", rc ? gr_error() : ended ? "ended" : "cut");
    for (size_t i = 0; i < p->out.n && !timed; i++)
        printf("%02x", ((uint8_t *)p->out.data)[i]);
    putchar('\n');
}

static void answer(struct probe *p, char *line)
{
    uint64_t seed;
    int n;
    if (!strncmp(line, "gbnf ", 5))
        read_grammar(p, line + 5, false);
    else if (!strncmp(line, "schema ", 7))
        read_grammar(p, line + 7, true);
    else if (!p->state)
        puts("error no grammar");
    else if (!strncmp(line, "text ", 5))
        check_text(p, line + 5);
    else if (sscanf(line, "walk %" SCNu64 " %d", &seed, &n) == 2)
        walk(p, seed, n, false);
    else if (sscanf(line, "time %" SCNu64 " %d", &seed, &n) == 2)
        walk(p, seed, n, true);
    else
        puts("error unknown line");
    fflush(stdout);
}

static int open_vocab(struct probe *p, const char *path)
{
    static const char *const texts[] = {"<|end|>", "<|think|>"};
    struct gr_gguf *g = NULL;
    p->bytes = !strcmp(path, "-");
    if (p->bytes)
        return byte_vocab_open(&p->vocab, texts, 2);
    int rc = gr_gguf_open(&g, path, true);
    if (!rc)
        rc = gr_vocab_open(&p->vocab, g);
    gr_gguf_close(&g);
    return rc;
}

int main(int argc, char **argv)
{
    struct probe p = {0};
    char *line = NULL;
    size_t cap = 0;
    if (argc != 2)
        return 2;
    int rc = open_vocab(&p, argv[1]);
    int64_t begin = cpu_ns();
    if (!rc)
        rc = gr_token_trie_new(&p.trie, p.vocab);
    if (rc)
        fprintf(stderr, "%s\n", gr_error());
    else
        printf("ready %d %.1f\n", gr_vocab_size(p.vocab), (double)(cpu_ns() - begin) / 1e3);
    fflush(stdout);
    while (!rc && getline(&line, &cap, stdin) > 0)
        answer(&p, line);
    gr_grammar_state_free(&p.state);
    gr_grammar_free(&p.grammar);
    gr_token_trie_free(&p.trie);
    gr_vocab_close(&p.vocab);
    gr_vec_fini(&p.out);
    free(line);
    return rc != 0;
}
