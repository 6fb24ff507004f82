#include "engine/imatrix.h"

#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "graph/graph.h"
#include "model/model.h"
#include "quantize/imatrix.h"

void gr_imatrix_collector_fini(struct gr_imatrix_collector *c)
{
    gr_free(c->ids);
    *c = (struct gr_imatrix_collector){0};
}

static int keep_ids(struct gr_imatrix_collector *c, const struct gr_ten *t)
{
    int32_t *ids = gr_realloc(c->ids, (size_t)(t->rows * t->cols), sizeof *ids);
    if (!ids)
        return GR_E_NOMEM_HOST;
    c->ids = ids, c->n_id = t->rows * t->cols, c->n_used = t->cols;
    for (int64_t r = 0; r < t->rows; r++)
        memcpy(ids + r * t->cols, gr_ten_row(t, 0, r), (size_t)t->cols * sizeof *ids);
    return 0;
}

/* Adds each row, a token or one expert's input of it, to the expert that multiplies it. */
static int add_to_experts(struct gr_imatrix_collector *c, const char *name,
                          const struct gr_tap *tap, const struct gr_ten *t)
{
    int rc = 0;
    for (int64_t i = 0; i < c->n_id && !rc; i++) {
        const float *x = gr_ten_row(t, 0, t->rows == c->n_id ? i : i / c->n_used);
        if (c->ids[i] >= 0 && c->ids[i] < tap->n_matrix)
            rc = gr_imatrix_add(c->imatrix, name, c->ids[i], tap->n_matrix, x, 1, tap->n_in, 0);
    }
    return rc;
}

/* Adds rows to all matrices of a product: each multiplies its own part of the columns. */
static int add_to_all(struct gr_imatrix_collector *c, const char *name, const struct gr_tap *tap,
                      const struct gr_ten *t)
{
    int64_t stride = t->row_bytes / (int64_t)sizeof(float), part = t->cols / tap->n_matrix;
    int rc = 0;
    for (int32_t i = 0; i < tap->n_matrix && !rc; i++)
        rc = gr_imatrix_add(c->imatrix, name, i, tap->n_matrix,
                            (const float *)gr_ten_row(t, 0, 0) + i * part, t->rows, tap->n_in,
                            stride);
    return rc;
}

void gr_imatrix_collect(struct gr_imatrix_collector *c, const struct gr_tap *tap,
                        const struct gr_ten *t)
{
    char name[96];
    if (!c->imatrix || c->rc)
        return;
    if (tap->kind == GR_TAP_IDS) {
        c->rc = keep_ids(c, t);
        return;
    }
    gr_slot_name((enum gr_slot)tap->weight, tap->layer, false, name, sizeof name);
    bool wanted =
        strncmp(name, "blk.", 4) == 0 || (c->output && strcmp(name, "output.weight") == 0);
    if (wanted && t->rows > 0)
        c->rc = c->n_id ? add_to_experts(c, name, tap, t) : add_to_all(c, name, tap, t);
    c->n_id = 0;
}

int gr_imatrix_collector_status(struct gr_imatrix_collector *c)
{
    int rc = c->rc;
    c->rc = 0;
    return rc;
}
