#include "machine.h"

static double line(const struct sim_law *law, double n)
{
    int i = 1;
    while (i + 1 < law->n_point && law->point[i].n < n)
        i++;
    double x = law->point[i - 1].n, y = law->point[i - 1].ns;
    double slope = (law->point[i].ns - y) / (law->point[i].n - x);
    return n <= law->point[0].n ? law->point[0].ns : y + slope * (n - x);
}

/* Gives the stages a micro-batch that is at the first one at `start`; returns when its results are
 * back. Stages take micro-batches in the order they come. */
static double pass(struct sim_machine *m, double start, double ns)
{
    double at = start, each = ns / m->n_stage;
    for (int i = 0; i < m->n_stage; i++) {
        double begin = at > m->free[i] ? at : m->free[i];
        m->free[i] = begin + each;
        at = m->free[i] + (m->n_stage > 1 ? m->hop_ns : 0);
    }
    m->busy += ns;
    return at;
}

double sim_machine_begin(struct sim_machine *m, const struct sim_part *part, int32_t n)
{
    double start = m->now, end = start, attention = 0;
    int32_t n_tok = 0;
    for (int32_t i = 0, used = 0; i < n;) {
        int32_t left = part[i].n - used, room = m->n_ubatch - n_tok, k = left < room ? left : room;
        double past = part[i].past + used, pairs = k * (past + (k - 1) / 2.0);
        attention += part[i].n == 1 ? past * m->law.cell_ns : pairs * m->law.pair_ns;
        n_tok += k, used += k;
        m->n_token += k;
        if (used == part[i].n)
            i++, used = 0;
        if (n_tok == m->n_ubatch || i == n) {
            end = pass(m, start, line(&m->law, n_tok) + attention);
            n_tok = 0, attention = 0;
        }
    }
    m->n_step++;
    m->now = m->free[0];
    return end;
}

void sim_machine_step(struct sim_machine *m, const struct sim_part *part, int32_t n)
{
    m->now = sim_machine_begin(m, part, n);
}
