/* A vocabulary of the 256 bytes as tokens 0 to 255, and then of given texts, of which the first
 * ends a text and the second is a control token. */
#ifndef TESTS_SUPPORT_BYTE_VOCAB_H
#define TESTS_SUPPORT_BYTE_VOCAB_H

#include <string.h>

#include "text/utf8.h"
#include "text/vocab.h"

enum { BYTE_VOCAB_MOST = 512 };

/* The letter that a byte-level vocabulary writes a byte as. */
static inline uint32_t byte_letter(uint32_t byte)
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return visible ? b : next;
        next += !visible;
    }
    return 0;
}

/* texts: [n] bytes, at most 60 each. */
static inline int byte_vocab_open(struct gr_vocab **v, const char *const *texts, size_t n)
{
    static char text[BYTE_VOCAB_MOST][128];
    static struct gr_str tokens[BYTE_VOCAB_MOST];
    static int32_t types[BYTE_VOCAB_MOST];
    struct gr_vocab_source s = gr_vocab_source_new("gpt2");
    for (size_t i = 0; i < 256 + n; i++) {
        const char one[2] = {(char)i, 0}, *from = i < 256 ? one : texts[i - 256];
        size_t length = i < 256 ? 1 : strlen(from), k = 0;
        bool control = i == 256 || i == 257;
        for (size_t c = 0; c < length; c++) {
            if (control)
                text[i][k++] = from[c];
            else
                k += gr_utf8_put(byte_letter((uint8_t)from[c]), text[i] + k);
        }
        tokens[i] = (struct gr_str){text[i], k};
        types[i] = control ? GR_TOKEN_CONTROL : GR_TOKEN_NORMAL;
    }
    s.pre = (struct gr_str){"gpt-2", 5};
    s.merges = tokens; /* none, but there */
    s.tokens = tokens, s.types = types;
    s.n_tok = s.n_types = 256 + n;
    s.special[GR_SPECIAL_EOS] = 256;
    return gr_vocab_open_source(v, &s);
}

#endif
