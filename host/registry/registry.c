#include "registry/registry.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/text.h"

#define ARCH(symbol) extern const struct gr_arch gr_arch_##symbol;
#include "models/models.def"
#undef ARCH

static const struct gr_arch *const table[] = {
#define ARCH(symbol) &gr_arch_##symbol,
#include "models/models.def"
#undef ARCH
};

const struct gr_arch *gr_arch_at(int i)
{
    return i >= 0 && i < (int)GR_COUNT(table) ? table[i] : NULL;
}

const struct gr_arch *gr_arch_find(struct gr_str name)
{
    for (unsigned i = 0; i < GR_COUNT(table); i++)
        if (gr_str_is(name, table[i]->name))
            return table[i];
    return NULL;
}

void gr_arch_nearest(struct gr_str name, const char *nearest[GR_N_NEAREST])
{
    size_t distance[GR_N_NEAREST] = {0};
    int n = 0;
    for (unsigned i = 0; i < GR_COUNT(table); i++) {
        size_t d = gr_edit_distance(name.p, name.n, table[i]->name, strlen(table[i]->name));
        int at = n;
        while (at > 0 && d < distance[at - 1])
            at--;
        if (at == GR_N_NEAREST)
            continue;
        n = GR_MIN(n + 1, GR_N_NEAREST);
        for (int k = n - 1; k > at; k--)
            distance[k] = distance[k - 1], nearest[k] = nearest[k - 1];
        distance[at] = d, nearest[at] = table[i]->name;
    }
}

static bool has_slot(const struct gr_arch *a, enum gr_slot slot)
{
    for (int i = 0; i < a->n_spec; i++)
        if (a->spec[i].slot == slot)
            return true;
    return false;
}

void gr_arch_about(const struct gr_arch *a, char *about, size_t n)
{
    const struct {
        bool is;
        const char *what;
    } facts[] = {
        {has_slot(a, GR_W_FFN_DOWN_EXPS), "experts"},
        {has_slot(a, GR_W_ATTN_KV_A), "latent attention"},
        {has_slot(a, GR_W_SSM_CONV) || has_slot(a, GR_W_SHORTCONV), "recurrent layers"},
        {a->no_cache, "no cache"},
        {a->encoded != NULL, "encoder and decoder"},
    };
    size_t at = 0;
    *about = 0;
    for (unsigned i = 0; i < GR_COUNT(facts) && at < n; i++)
        if (facts[i].is)
            at += (size_t)snprintf(about + at, n - at, "%s%s", at ? ", " : "", facts[i].what);
}
