/* Speculative decoding with a draft model: draft MODEL DRAFT_MODEL PROMPT N_TOKENS */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL, *small = NULL;
    struct gr_draft_params drafts = gr_draft_params_default();
    struct gr_session_params session = gr_session_params_default();
    struct gr_generate_params params = gr_generate_params_default();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    session.n_rollback = (uint32_t)drafts.n_max, session.swa_full = true; /* to take drafts back */
    greedy.temp = 0, params.sampler = &greedy, params.text = print, params.user = stdout;
    int rc = argc == 5 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_model_open(&small, argv[2], NULL);
    rc = rc ? rc : gr_session_open(&drafts.session, small, &session);
    drafts.model = small;
    rc = rc ? rc : gr_draft_new(&params.draft, &drafts, model);
    params.n_predict = rc ? 0 : atoi(argv[4]);
    rc = rc ? rc : gr_generate(model, argv[3], strlen(argv[3]), &session, &params, NULL);
    if (rc) {
        fprintf(stderr, "%s\n", gr_error_message());
    } else {
        struct gr_draft_stats stats = gr_draft_stats(params.draft);
        fprintf(stderr, "%lld of %lld drafted tokens accepted\n", (long long)stats.n_accepted,
                (long long)stats.n_drafted);
    }
    gr_draft_free(&params.draft), gr_session_close(&drafts.session);
    gr_model_close(&small), gr_model_close(&model);
    return gr_status_exit(rc);
}
