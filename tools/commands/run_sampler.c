/* The sampler of gpurun run. */
#include <string.h>

#include "run.h"
#include "tools/cli/sampler.h"
#include "tools/cli/say.h"

int gr_run_open_sampler(struct run *r)
{
    struct gr_sampler_choice c;
    int rc = gr_sampler_choose(&c, r->o, r->model);
    const struct gr_sampler_params *p = &c.p;
    c.p.seed = r->seed, c.p.n_ctx = r->n_ctx;
    r->temp = p->temp;
    if (c.n_file && r->index <= 1 && !r->turn)
        gr_say(
            "sampling: temperature %g, top-k %d, top-p %g, min-p %g; the model's file sets %d of "
            "the parameters, which flags override",
            (double)p->temp, p->top_k, (double)p->top_p, (double)p->min_p, c.n_file);
    int status = rc ? 0 : gr_sampler_new(&r->sampler, p);
    gr_sampler_drop(&c);
    return status ? gr_say_status(status) : rc;
}

int gr_run_accept_prompt(struct run *r)
{
    int rc = 0;
    for (size_t i = 0; i < r->n_prompt && !rc; i++)
        rc = gr_sampler_accept(r->sampler, r->prompt[i]);
    if (!rc && r->draft)
        rc = gr_draft_accept(r->draft, r->prompt, r->n_prompt);
    return rc ? rc : gr_sampler_set_grammar(r->sampler, r->grammar);
}

int gr_run_say_no_pick(void)
{
    bool logits = !strncmp(gr_error_message(), "non-finite", 10);
    gr_say_error("%s%s", gr_error_message(),
                 logits ? "; the weights or the cache hold values that are not finite, and "
                          "--check-tensors names such weights"
                        : "");
    return 1;
}
