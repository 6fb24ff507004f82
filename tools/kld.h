/* How far a model's probabilities are from those of another one, the base, token by token: what
 * llama-perplexity --kl-divergence tells, from sums in f64. */
#ifndef GR_TOOLS_KLD_H
#define GR_TOOLS_KLD_H

#include "base_file.h"

/* Sums over tokens: of -log p and -log p of the base, squared and multiplied with each other; of
 * the divergence; of the difference of both probabilities. */
struct gr_kld_sums {
    double nll, nll2, base, base2, both;
    double kld, kld2;
    double dp, dp2, dp4;
    int64_t n_same_top, n;
};

struct gr_kld {
    struct gr_kld_sums whole, now; /* of the chunks that are complete; with the one under way */
    float *kld, *dp;               /* [room] of each token */
    int64_t room;
};

/* Room for n tokens. 0 or an exit code, said. */
int gr_kld_init(struct gr_kld *k, int64_t n);
void gr_kld_fini(struct gr_kld *k);

/* A token: the model's logits with the logarithm of the sum of their exponentials, the base's row,
 * and the token that came. */
void gr_kld_add(struct gr_kld *k, const float *logits, double log_sum,
                const struct gr_base_row *base, int32_t n_vocab, int32_t came);
/* What was added is whole chunks now. */
void gr_kld_complete(struct gr_kld *k);

/* To stdout: what the columns of gr_kld_tell are; the figures of all complete chunks, the last of
 * which is number i, in a line or as an object. */
void gr_kld_head(void);
void gr_kld_tell(const struct gr_kld *k, int32_t i, bool json);
/* All figures, from at least one chunk: lines, or members of an object that begin with a comma. */
void gr_kld_report(struct gr_kld *k, bool json);

#endif
