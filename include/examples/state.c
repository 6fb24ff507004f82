/* Writes N_TOKENS, saves the session, restores it in another one and writes as many more: state
 * MODEL PROMPT N_TOKENS FILE */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_session *first = NULL, *second = NULL;
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_generate_params params = gr_generate_params_default();
    struct gr_generated done = {.last = -1};
    int32_t *ids = NULL;
    size_t n = 0;
    void *note = NULL;
    greedy.temp = 0, params.sampler = &greedy, params.text = print, params.user = stdout;
    int rc = argc == 5 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_session_open(&first, model, NULL);
    rc = rc ? rc : gr_text_tokenize(model, argv[2], strlen(argv[2]), true, true, &ids, &n);
    params.n_predict = rc ? 0 : atoi(argv[3]);
    rc = rc ? rc : gr_generate_tokens(first, 0, ids, n, &params, &done);
    rc = rc ? rc : gr_state_save_file(first, -1, &done.last, sizeof done.last, argv[4]);
    gr_session_close(&first), gr_free_ids(ids);
    rc = rc ? rc : gr_session_open(&second, model, NULL);
    rc = rc ? rc : gr_state_load_file(second, -1, argv[4], &note, &n); /* the token comes with it */
    rc = rc ? rc : gr_generate_tokens(second, 0, note, 1, &params, NULL);
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    gr_state_free(note), gr_session_close(&second), gr_model_close(&model);
    return gr_status_exit(rc);
}
