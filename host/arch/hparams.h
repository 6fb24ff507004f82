/* Reading the hyper-parameters of a file. */
#ifndef GR_ARCH_HPARAMS_H
#define GR_ARCH_HPARAMS_H

#include "arch/arch.h"

struct gr_gguf;

/* Reads and checks the hyper-parameters of `arch` from the file. */
int gr_hparams_read(struct gr_hparams *hp, const struct gr_gguf *g, const struct gr_arch *arch);

#endif
