/* Answers messages by the model's chat template: chat MODEL MESSAGES N_TOKENS; they are JSON:
 * [{"role": "user", "content": "Hello"}] */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_session *session = NULL;
    struct gr_session_params size = gr_session_params_default();
    struct gr_generate_params params = gr_generate_params_default();
    struct gr_template *chat = NULL;
    struct gr_prompt prompt = {.text = NULL};
    const char *text, *known;
    char json[4096] = "";
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = argc == 4 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_model_template(model, &text, &n, &known);
    rc = rc ? rc : gr_template_new(&chat, text, n);
    if (!rc)
        snprintf(json, sizeof json, "{\"messages\": %s, \"add_generation_prompt\": true}", argv[2]);
    rc = rc ? rc : gr_template_render(chat, json, strlen(json), time(NULL), &prompt);
    rc = rc ? rc : gr_prompt_tokenize(model, &prompt, &ids, &n); /* none of the user's is control */
    params.text = print, params.user = stdout, params.n_predict = rc ? 0 : atoi(argv[3]);
    size.n_ctx = (uint32_t)(n + (size_t)params.n_predict);
    rc = rc ? rc : gr_session_open(&session, model, &size);
    rc = rc ? rc : gr_generate_tokens(session, 0, ids, n, &params, NULL);
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    gr_free_ids(ids), gr_prompt_free(&prompt), gr_template_free(&chat);
    return gr_session_close(&session), gr_model_close(&model), gr_status_exit(rc);
}
