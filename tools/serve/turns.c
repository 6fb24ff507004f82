/* Adapters by request: a step computes texts of the same strengths, and those whose last step is
 * longest ago come next, so that each of n sets has one of n steps. */
#include <nettle/sha2.h>
#include <string.h>

#include "gpurun.h"
#include "scheduler_impl.h"

_Static_assert(SHA256_DIGEST_SIZE == 32, "");

int gr_scheduler_open_adapters(struct gr_scheduler *s)
{
    static const float none[GR_MAX_ADAPTER];
    float one[GR_MAX_ADAPTER];
    int rc = 0;
    for (int32_t i = 0; i < s->p.n_adapter && !rc; i++) {
        struct sha256_ctx c;
        void *data = NULL;
        size_t n = 0;
        memset(one, 0, sizeof one);
        one[i] = 1;
        rc = gr_session_set_adapters(s->p.session, one);
        if (!rc)
            rc = gr_state_save(s->p.session, 0, NULL, 0, &data, &n);
        sha256_init(&c);
        sha256_update(&c, n, data);
        sha256_digest(&c, sizeof s->adapter_sum[i], s->adapter_sum[i]);
        gr_state_free(data);
    }
    return rc ? rc : gr_session_set_adapters(s->p.session, none);
}

struct gr_prefix_key gr_scheduler_key(const struct gr_scheduler *s, uint64_t owner,
                                      const float *adapter)
{
    struct gr_prefix_key key = {.id = owner};
    struct sha256_ctx c;
    uint8_t sum[SHA256_DIGEST_SIZE];
    bool any = false;
    sha256_init(&c);
    sha256_update(&c, sizeof owner, (const uint8_t *)&owner);
    for (int32_t i = 0; i < s->p.n_adapter && adapter; i++) {
        if (adapter[i] == 0)
            continue;
        any = true;
        key.adapter[i] = adapter[i];
        sha256_update(&c, sizeof s->adapter_sum[i], s->adapter_sum[i]);
        sha256_update(&c, sizeof adapter[i], (const uint8_t *)&adapter[i]);
    }
    sha256_digest(&c, sizeof sum, sum);
    if (any)
        memcpy(&key.id, sum, sizeof key.id);
    return key;
}

static bool same(const float a[GR_MAX_ADAPTER], const float b[GR_MAX_ADAPTER])
{
    return memcmp(a, b, GR_MAX_ADAPTER * sizeof *a) == 0;
}

void gr_scheduler_join_turn(struct gr_scheduler *s, struct gr_text *t)
{
    t->turn = s->n_turn; /* behind those that wait */
    for (int32_t i = 0; i < s->n_active; i++) {
        if (s->active[i] != t && same(s->active[i]->key.adapter, t->key.adapter))
            t->turn = s->active[i]->turn;
    }
}

int gr_scheduler_take_turn(struct gr_scheduler *s)
{
    const struct gr_text *next = s->active[0];
    if (!s->p.n_adapter)
        return 0;
    for (int32_t i = 1; i < s->n_active; i++)
        next = s->active[i]->turn < next->turn ? s->active[i] : next;
    memcpy(s->turn, next->key.adapter, sizeof s->turn);
    s->n_turn++;
    for (int32_t i = 0; i < s->n_active; i++) {
        if (gr_scheduler_has_turn(s, s->active[i]))
            s->active[i]->turn = s->n_turn;
    }
    return gr_session_set_adapters(s->p.session, s->turn);
}

bool gr_scheduler_has_turn(const struct gr_scheduler *s, const struct gr_text *t)
{
    return !s->p.n_adapter || same(t->key.adapter, s->turn);
}
