/* Goes beyond the training context by Self-Extend, 4 positions to 1: self_extend MODEL PROMPT N */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_model_info info = {.n_vocab = 0};
    struct gr_session *s = NULL;
    struct gr_session_params size = gr_session_params_default();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_sampler *sampler = NULL;
    struct gr_self_extend groups = {.n = 4, .w = 32};
    int32_t *ids = NULL, id = 0, n_past = 0, left = argc == 4 ? atoi(argv[3]) : 0;
    size_t n = 0;
    const char *text;
    int rc = argc == 4 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    if (!rc)
        gr_model_info(model, &info);
    size.n_ctx = 4 * (uint32_t)info.n_ctx_train, greedy.temp = 0, greedy.n_vocab = info.n_vocab;
    rc = rc ? rc : gr_session_open(&s, model, &size);
    rc = rc ? rc : gr_sampler_new(&sampler, &greedy);
    rc = rc ? rc : gr_text_tokenize(model, argv[2], strlen(argv[2]), true, true, &ids, &n);
    struct gr_batch batch = {.token = ids}; /* n tokens from here are to be decoded */
    while (!rc && left > 0) {
        rc = gr_self_extend(s, &groups, &n_past); /* merges full windows, lowers n_past */
        int32_t room = gr_self_extend_remaining(&groups, n_past);
        batch.n_tok = (int32_t)n < room ? (int32_t)n : room;
        rc = rc ? rc : gr_decode(s, &batch);
        n_past += batch.n_tok, batch.token += batch.n_tok, n -= (size_t)batch.n_tok;
        if (rc || n || (rc = gr_sampler_pick(sampler, gr_logits(s, -1), &id)) != 0)
            continue;
        if ((rc = gr_text_piece(model, id, false, &text, &n)) == 0)
            fwrite(text, 1, n, stdout);
        batch.token = &id, n = 1, left = gr_text_is_eog(model, id) ? 0 : left - 1;
    }
    gr_free_ids(ids), gr_sampler_free(&sampler), gr_session_close(&s), gr_model_close(&model);
    return rc ? (fprintf(stderr, "%s\n", gr_error_message()), gr_status_exit(rc)) : 0;
}
