/* Divergence of a model's probabilities from those of another one, the base, token by token: the
 * figures of llama-perplexity --kl-divergence, from sums in f64. */
#ifndef GR_TOOLS_KLD_H
#define GR_TOOLS_KLD_H

#include "base_file.h"

/* Sums over tokens: -log p and -log p of the base, their squares and product; the divergence; the
 * difference of both probabilities. */
struct gr_kld_sums {
    double nll, nll2, base, base2, both;
    double kld, kld2;
    double dp, dp2, dp4;
    int64_t n_same_top, n;
};

struct gr_kld {
    struct gr_kld_sums whole, now; /* of the complete chunks; including the current one */
    float *kld, *dp;               /* [room] for each token */
    int64_t room;
};

/* Allocates room for n tokens. 0 or an exit code, after printing the error. */
int gr_kld_init(struct gr_kld *k, int64_t n);
void gr_kld_fini(struct gr_kld *k);

/* Adds a token: the model's logits, log of the sum of their exponentials, the base's row, and the
 * token that follows in the text. */
void gr_kld_add(struct gr_kld *k, const float *logits, double log_sum,
                const struct gr_base_row *base, int32_t n_vocab, int32_t came);
/* Marks everything added so far as complete chunks. */
void gr_kld_complete(struct gr_kld *k);

/* Print to stdout the header of gr_kld_print_chunk's columns; the figures of all complete chunks,
 * up to chunk i, as a line or an object. */
void gr_kld_head(void);
void gr_kld_print_chunk(const struct gr_kld *k, int32_t i, bool json);
/* Prints all figures, of at least one chunk: as lines, or as members of an object beginning with a
 * comma. */
void gr_kld_report(struct gr_kld *k, bool json);

#endif
