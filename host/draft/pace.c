/* How long drafts are, and whether they are worth it. */
#include <math.h>

#include "base/checked.h"
#include "draft/draft.h"

enum {
    FIRST_LENGTH = 4,
    TRIAL = 12,       /* steps that try a draft before drafts are judged */
    RETRIAL = 4,      /* the same after a pause */
    PROBE = 4,        /* steps without one that tell how long these take */
    FIRST_PAUSE = 64, /* steps; doubled each time */
    LAST_PAUSE = 1024,
};

int32_t gr_draft_pace_next(struct gr_draft_pace *p)
{
    if (!p->adaptive)
        return p->n_max;
    if (!p->length) { /* the first step */
        p->length = GR_MAX(GR_MIN(FIRST_LENGTH, p->n_max), p->n_min), p->pause = FIRST_PAUSE;
        p->n_plain = PROBE;
    }
    return p->n_plain > 0 ? 0 : p->length;
}

/* A mean that forgets slow steps quickly: the first of a length takes longer than the others. */
static double mean(double old, double sample)
{
    if (old <= 0)
        return sample;
    return sample < old ? 0.5 * old + 0.5 * sample : 0.8 * old + 0.2 * fmin(sample, 4 * old);
}

/* Judges drafts after a trial: a pause when they lose, or a few steps without to compare with. */
static void judge(struct gr_draft_pace *p)
{
    bool loses = p->plain_s > 0 && p->draft_s > p->plain_s;
    p->n_trial = 0;
    p->n_plain = loses ? p->pause : PROBE;
    p->pause = loses ? GR_MIN(2 * p->pause, LAST_PAUSE) : FIRST_PAUSE;
    if (loses)
        p->draft_s = 0;
}

void gr_draft_pace_step(struct gr_draft_pace *p, bool tried, int32_t n_draft, int32_t n_accepted,
                        double seconds)
{
    if (!tried) {
        p->plain_s = mean(p->plain_s, seconds);
        p->n_plain -= p->n_plain > 0;
        return;
    }
    p->draft_s = mean(p->draft_s, seconds / (n_accepted + 1));
    if (n_draft && n_accepted == n_draft)
        p->length = GR_MIN(2 * p->length, p->n_max);
    else if (n_draft)
        p->length = GR_MAX((p->length + n_accepted + 1) / 2, GR_MAX(p->n_min, 1));
    if (++p->n_trial >= (p->pause > FIRST_PAUSE ? RETRIAL : TRIAL) && p->adaptive)
        judge(p);
}
