/* Random adapters (LoRA) for tiny models. */
#ifndef TESTS_SUPPORT_ADAPTER_H
#define TESTS_SUPPORT_ADAPTER_H

#include "gguf/gguf.h"
#include "model/model.h"

enum { ADAPTER_MOST = 256 };

/* A and B of one weight. */
struct adapter_pair {
    char name[96];
    enum gr_slot slot;
    int64_t in, out, batch, rank;
    float *a, *b;
    bool rows; /* the weight is looked up by rows, so A has one for each */
};

struct adapter {
    struct adapter_pair pair[ADAPTER_MOST];
    int n;
    float alpha, scale;
    bool half; /* the numbers are those of f16 and stored so */
    char path[512];
    const char *arch;
    void (*edit)(struct gr_gguf_writer *w); /* of the metadata, at last */
};

/* Adds a pair for each matrix that a graph may multiply with; `every`: for one in so many of them.
 * The file will be `path`. */
void adapter_make(struct adapter *a, const struct gr_model *m, uint64_t seed, uint32_t every,
                  const char *path);
void adapter_drop(struct adapter *a, int i);
void adapter_write(const struct adapter *a);
/* Frees the pairs and removes the file. */
void adapter_release(struct adapter *a);

#endif
