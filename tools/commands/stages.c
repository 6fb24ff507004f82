/* Use of each rank's time: a line of the summary, and JSON. */
#include "stages.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli/say.h"

enum { MOST_RANKS = 64, MOST_SAID = 4 };

/* Seconds of a rank. */
struct spent {
    double busy, wait, transfer;
};

static struct spent spent_by(const struct gr_stage *s)
{
    return (struct spent){1e-9 * (double)s->busy_ns, 1e-9 * (double)s->wait_ns,
                          1e-9 * (double)s->transfer_ns};
}

static double percent(double part, const struct spent *s)
{
    double all = s->busy + s->wait + s->transfer;
    return all > 0 ? 100 * part / all : 0;
}

/* Prints every rank. */
static void say_each(const struct gr_stage *stage, int32_t n)
{
    char line[512] = "";
    double longest = 0;
    for (int32_t i = 0; i < n; i++) {
        struct spent s = spent_by(&stage[i]);
        double all = s.busy + s.wait + s.transfer;
        longest = all > longest ? all : longest;
    }
    double unit = longest < 10 ? 1e3 : 1;
    for (int32_t i = 0; i < n; i++) {
        struct spent s = spent_by(&stage[i]);
        size_t at = strlen(line);
        snprintf(line + at, sizeof line - at, "%s rank %d (%s) %.1f/%.1f/%.1f", i ? " |" : "",
                 stage[i].rank, stage[i].device, s.busy * unit, s.wait * unit, s.transfer * unit);
    }
    gr_say("stages, %s busy/waiting/transfer:%s", longest < 10 ? "ms" : "s", line);
}

/* Prints only the busiest and the idlest of many ranks. */
static void say_ends(const struct gr_stage *stage, int32_t n)
{
    struct spent most = spent_by(&stage[0]), least = most;
    int32_t i_most = 0, i_least = 0;
    for (int32_t i = 1; i < n; i++) {
        struct spent s = spent_by(&stage[i]);
        if (s.busy > most.busy)
            most = s, i_most = i;
        if (s.busy < least.busy)
            least = s, i_least = i;
    }
    gr_say("stages: %d ranks | busiest: rank %d, %.0f%% busy, %.0f%% waiting, %.1f%% transfer | "
           "idlest: rank %d, %.0f%%, %.0f%%, %.1f%%",
           n, stage[i_most].rank, percent(most.busy, &most), percent(most.wait, &most),
           percent(most.transfer, &most), stage[i_least].rank, percent(least.busy, &least),
           percent(least.wait, &least), percent(least.transfer, &least));
}

int32_t gr_count_stages(struct gr_session *session)
{
    struct gr_stage stage[MOST_RANKS];
    int32_t n = gr_session_stages(session, stage, MOST_RANKS), count = 0;
    for (int32_t i = 0; i < n && i < MOST_RANKS; i++)
        count += stage[i].n_layer && (!i || stage[i].first_layer != stage[i - 1].first_layer);
    return count > 0 ? count : 1;
}

void gr_say_stages(struct gr_session *session)
{
    struct gr_stage stage[MOST_RANKS];
    int32_t n = gr_session_stages(session, stage, MOST_RANKS);
    n = n < MOST_RANKS ? n : MOST_RANKS;
    if (n > MOST_SAID)
        say_ends(stage, n);
    else if (n > 1)
        say_each(stage, n);
}

json_t *gr_stages_json(struct gr_session *session)
{
    struct gr_stage stage[MOST_RANKS];
    int32_t n = gr_session_stages(session, stage, MOST_RANKS);
    json_t *list = json_array();
    int rc = list ? 0 : -1;
    for (int32_t i = 0; i < n && i < MOST_RANKS && !rc; i++) {
        struct spent s = spent_by(&stage[i]);
        rc = json_array_append_new(
            list, json_pack("{s:i, s:i, s:i, s:s, s:s, s:f, s:f, s:f}", "rank", stage[i].rank,
                            "first_layer", stage[i].n_layer ? stage[i].first_layer : -1, "layers",
                            stage[i].n_layer, "device", stage[i].device, "host", stage[i].host,
                            "busy_s", s.busy, "wait_s", s.wait, "transfer_s", s.transfer));
    }
    if (!rc)
        return list;
    json_decref(list);
    return NULL;
}
