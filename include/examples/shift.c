/* Goes on in a full context of 256 cells by K-shifts: shift MODEL PROMPT N_TOKENS */
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
    int32_t *prompt = NULL, id = 0, left = argc == 4 ? atoi(argv[3]) : 0;
    size_t n = 0;
    const char *text = "";
    int rc = argc == 4 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    if (!rc)
        gr_model_info(model, &info);
    struct gr_logit_bias no_end = {rc ? 0 : gr_text_eos(model), -1e9f};
    greedy.temp = 0, greedy.n_vocab = info.n_vocab, greedy.logit_bias = &no_end;
    size.n_ctx = 256, greedy.n_logit_bias = 1;
    rc = rc ? rc : gr_session_open(&s, model, &size);
    rc = rc ? rc : gr_sampler_new(&sampler, &greedy);
    rc = rc ? rc : gr_text_tokenize(model, argv[2], strlen(argv[2]), true, true, &prompt, &n);
    struct gr_batch batch = {.n_tok = (int32_t)n, .token = prompt};
    while (!rc && left-- > 0) {
        if (gr_kv_used(s) == gr_session_n_ctx(s)) /* drops the older half of what follows BOS */
            rc = gr_context_shift(s, 0, 1, 0, NULL);
        rc = rc ? rc : gr_decode(s, &batch);
        rc = rc ? rc : gr_sampler_pick(sampler, gr_logits(s, -1), &id);
        if (!rc && (rc = gr_text_piece(model, id, false, &text, &n)) == 0)
            fwrite(text, 1, n, stdout);
        batch = (struct gr_batch){.n_tok = 1, .token = &id};
    }
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    gr_free_ids(prompt), gr_sampler_free(&sampler), gr_session_close(&s), gr_model_close(&model);
    return gr_status_exit(rc);
}
