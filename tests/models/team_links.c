/* The links of a team are tried when it loads: once, all of them, with a line for each. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ranks/team.h"
#include "support/tiny.h"

static char lines[4000];

static void keep(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == GR_LOG_DEBUG && strncmp(line, "link ", 5) == 0)
        strncat(strncat(lines, line, 300), "\n", 2);
}

Test(team_links, are_tried_once)
{
    struct gr_model_params p = gr_model_params_default();
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m;
    char line[160], *at = lines;
    t.n_layer = 5, p.n_rank = 4;
    gr_log_set(keep, NULL);
    cr_assert_eq(gr_model_open(&m, tiny_write(&t, NULL), &p), 0, "%s", gr_error());
    for (int again = 0; again < 2; again++) {
        struct gr_session *s = tiny_session(m, NULL);
        gr_session_close(&s);
    }
    cr_assert_eq(m->team->n_found, 3);
    for (int i = 0; i < 3; i++) {
        const struct gr_link_result *f = &m->team->found[i];
        cr_assert(f->from == i && f->to == i + 1 && f->bytes_per_s > 0);
        gr_link_result_text(f, line, sizeof line);
        cr_assert(strncmp(at, line, strlen(line)) == 0, "%s", lines);
        at += strlen(line) + 1;
    }
    cr_assert_eq(*at, 0, "%s", lines);
    gr_model_close(&m);
}
