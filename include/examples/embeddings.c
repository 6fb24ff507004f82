/* Compares two texts by the cosine of their embeddings: embeddings MODEL TEXT TEXT */
#include <gpurun.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Copies the embedding of a text to v [n]. */
static int embed(struct gr_session *s, const char *text, float *v, size_t n)
{
    int32_t *ids;
    size_t n_ids;
    int rc = gr_text_tokenize(gr_session_model(s), text, strlen(text), true, true, &ids, &n_ids);
    struct gr_batch batch = {.n_tok = (int32_t)n_ids, .token = ids};
    gr_kv_clear(s);
    rc = rc ? rc : gr_decode(s, &batch);
    if (!rc)
        memcpy(v, gr_embeddings_seq(s, 0), n * sizeof *v);
    gr_free_ids(ids);
    return rc;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_session *s = NULL;
    struct gr_session_params params = gr_session_params_default();
    double ab = 0, aa = 0, bb = 0;
    params.embeddings = true, params.pooling = GR_POOLING_MEAN, params.n_ubatch = params.n_batch;
    int rc = argc == 4 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_session_open(&s, model, &params);
    size_t n = rc ? 0 : (size_t)gr_session_n_embd(s);
    float *a = calloc(n + 1, sizeof *a), *b = calloc(n + 1, sizeof *b);
    rc = rc ? rc : embed(s, argv[2], a, n);
    rc = rc ? rc : embed(s, argv[3], b, n);
    for (size_t i = 0; i < n; i++)
        ab += (double)a[i] * b[i], aa += (double)a[i] * a[i], bb += (double)b[i] * b[i];
    rc ? fprintf(stderr, "%s\n", gr_error_message()) : printf("%.5f\n", ab / sqrt(aa * bb));
    free(a), free(b);
    return gr_session_close(&s), gr_model_close(&model), gr_status_exit(rc);
}
