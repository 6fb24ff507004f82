/* Continues texts with a common beginning, which is computed once: prefix MODEL PREFIX REST.. */
#include <gpurun.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

/* Adds a text to a sequence, and n tokens that continue it. */
static int add_text(struct gr_session *s, int32_t seq, const char *text, bool begins, int32_t n)
{
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_generate_params params = gr_generate_params_default();
    int32_t *ids = NULL;
    size_t n_ids = 0;
    greedy.temp = 0, params.sampler = &greedy, params.text = print, params.user = stdout,
    params.n_predict = n;
    int rc = gr_text_tokenize(gr_session_model(s), text, strlen(text), begins, true, &ids, &n_ids);
    rc = rc ? rc : gr_generate_tokens(s, seq, ids, n_ids, &params, NULL);
    gr_free_ids(ids);
    return rc;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_session *s = NULL;
    struct gr_session_params size = gr_session_params_default();
    size.n_ctx = 4096, size.n_seq_max = argc > 3 ? (uint32_t)argc - 2 : 1;
    int rc = argc > 3 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_session_open(&s, model, &size);
    rc = rc ? rc : add_text(s, 0, argv[2], true, 0);
    for (int i = 3; i < argc && !rc; i++, putchar('\n')) {
        rc = gr_kv_seq_cp(s, 0, i - 2, -1, -1); /* shares the cells of sequence 0 */
        rc = rc ? rc : add_text(s, i - 2, argv[i], false, 16);
    }
    gr_session_close(&s), gr_model_close(&model);
    return rc ? (fprintf(stderr, "%s\n", gr_error_message()), gr_status_exit(rc)) : 0;
}
