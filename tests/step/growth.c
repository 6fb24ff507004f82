/* step_growth: what cells cost a decode step on the CPU, in CPU time of one thread, the best of
 * some measurements: those of the text that goes on, and those of another text. Prints a JSON
 * object. Exit code 1 when the former is no line through what the step costs without any, or the
 * latter is not a small part of it. */
#include <math.h>
#include <stdio.h>

#include "step/text.h"

enum { N_POINT = 6, N_TRY = 7, N_STEP = 4, OWN = 1024, APART = 512 };

static const double least_fit = 0.8, most_share = 0.2;

/* Microseconds of a step of text 0, which has n cells, by the number of cells of text `grows`:
 * none, APART, 2 * APART and so on. A status. */
static int step_us(struct gr_session *s, int32_t n, int32_t grows, double us[N_POINT])
{
    gr_kv_clear(s);
    int rc = text_fill(s, 0, n);
    for (int i = 0; i < N_POINT && !rc; i++) {
        rc = i ? text_fill(s, grows, APART) : 0;
        us[i] = 1e30;
        for (int k = 0; k < N_TRY && !rc; k++) {
            double start = text_cpu_us();
            for (int j = 0; j < N_STEP && !rc; j++)
                rc = text_step(s, 1);
            us[i] = fmin(us[i], (text_cpu_us() - start) / N_STEP);
            rc = rc ? rc : gr_kv_seq_rm(s, 0, n + (grows ? 0 : i * APART), -1);
        }
    }
    return rc;
}

/* Slope of least squares; *fit: the share of the variance that the line explains. */
static double slope_of(const double y[N_POINT], double *fit)
{
    double mx = 0, my = 0, xx = 0, xy = 0, yy = 0;
    for (int i = 0; i < N_POINT; i++)
        mx += (double)i * APART / N_POINT, my += y[i] / N_POINT;
    for (int i = 0; i < N_POINT; i++) {
        xx += (i * APART - mx) * (i * APART - mx);
        xy += (i * APART - mx) * (y[i] - my);
        yy += (y[i] - my) * (y[i] - my);
    }
    *fit = yy > 0 ? xy * xy / (xx * yy) : 1;
    return xy / xx;
}

static int measure(struct gr_session *s)
{
    double own[N_POINT], others[N_POINT], fit, no_fit;
    if (step_us(s, 0, 0, own) || step_us(s, OWN, 1, others))
        return fprintf(stderr, "step_growth: %s\n", gr_error_message()), 1;
    double per_own = slope_of(own, &fit), per_other = slope_of(others, &no_fit);
    printf("{\"own_ns\": %.3f, \"others_ns\": %.3f, \"r2\": %.4f, \"us\": %.1f}\n", per_own * 1e3,
           per_other * 1e3, fit, own[N_POINT - 1]);
    return !(per_own > 0 && fit >= least_fit && fabs(per_other) <= most_share * per_own);
}

int main(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    t.n_layer = 1, t.n_ctx = 16384, t.n_head = t.n_head_kv = 8, t.d_head = 64;
    int rc = !text_open("step_growth", &t, 16384, &m, &s);
    for (int i = 0; i < 3; i++) { /* what else runs may disturb one of them */
        int grows = rc ? rc : measure(s);
        if (!grows || rc)
            break;
        rc = i == 2;
    }
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}
