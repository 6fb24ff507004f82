/* Number of ranks, their shares of the layers, and the devices of each. */
#include "ranks/choose.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "link/link.h"

/* GPUs of so many, and ranks, then the first and the number of GPUs of each rank. */
static const struct {
    int32_t n_gpu, n_rank, first[5], n[5];
} deals[] = {
    {0, 1, {0}, {0}},
    {0, 3, {0}, {0, 0, 0}},
    {1, 1, {0}, {1}},
    {4, 1, {0}, {4}},
    {4, 2, {0, 2}, {2, 2}},
    {5, 2, {0, 2}, {2, 3}},
    {4, 4, {0, 1, 2, 3}, {1, 1, 1, 1}},
    {2, 5, {0, 1, 0, 1, 0}, {1, 1, 1, 1, 1}},
    {1, 3, {0, 0, 0}, {1, 1, 1}},
};

Test(ranks, devices_are_dealt)
{
    for (size_t i = 0; i < GR_COUNT(deals); i++) {
        struct gr_devices all = {.n = deals[i].n_gpu}, own;
        for (int32_t d = 0; d < all.n; d++)
            all.found[d].index = d;
        for (int32_t r = 0; r < deals[i].n_rank; r++) {
            gr_devices_assign(&own, &all, r, deals[i].n_rank);
            cr_expect_eq(own.n, deals[i].n[r], "case %zu, rank %d: %d", i, r, own.n);
            for (int32_t d = 0; d < own.n; d++)
                cr_expect_eq(own.found[d].index, deals[i].first[r] + d, "case %zu, rank %d", i, r);
        }
    }
}

static int choose(int32_t n_rank, int32_t n_shard, enum gr_split_mode mode, struct gr_world *w,
                  struct gr_ranks *r)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = "none", p.n_rank = n_rank, p.n_shard = n_shard, p.split_mode = mode, p.world = w;
    return gr_ranks_choose(r, &p);
}

#define LAYER GR_SPLIT_MODE_LAYER
#define TENSOR GR_SPLIT_MODE_TENSOR

Test(ranks, of_threads)
{
    struct gr_ranks r;
    cr_expect(!choose(0, 0, LAYER, NULL, &r) && r.n_rank == 1 && r.n_shard == 1);
    cr_expect(!choose(4, 0, LAYER, NULL, &r) && r.n_rank == 4 && r.n_shard == 1);
    cr_expect(!choose(4, 1, LAYER, NULL, &r) && r.n_rank == 4 && r.n_shard == 1);
    cr_expect(!choose(4, 0, TENSOR, NULL, &r) && r.n_rank == 4 && r.n_shard == 4);
    cr_expect(!choose(4, 2, TENSOR, NULL, &r) && r.n_rank == 4 && r.n_shard == 2);
    cr_expect(!choose(0, 0, TENSOR, NULL, &r) && r.n_rank == 1 && r.n_shard == 1);
    cr_expect(!choose(0, 0, GR_SPLIT_MODE_NONE, NULL, &r) && r.n_rank == 1 && r.n_shard == 1);
    static const struct {
        int32_t n_rank, n_shard;
        enum gr_split_mode mode;
        const char *why;
    } bad[] = {{4, 3, TENSOR, "a multiple"},  {2, 0, GR_SPLIT_MODE_NONE, "--split-mode none"},
               {4, 2, LAYER, "--split-mode"}, {65, 0, LAYER, "1 to 64"},
               {-1, 0, LAYER, "1 to 64"},     {1, -1, TENSOR, "1 to 64"},
               {2, 65, TENSOR, "1 to 64"},    {1, 2, TENSOR, "a multiple"}};
    for (size_t i = 0; i < GR_COUNT(bad); i++) {
        cr_expect_eq(choose(bad[i].n_rank, bad[i].n_shard, bad[i].mode, NULL, &r), GR_E_INVALID);
        cr_expect(strstr(gr_error(), bad[i].why), "%s", gr_error());
    }
}

Test(ranks, of_processes)
{
    struct gr_rank facts[4] = {{"a", 1, 0, 2}, {"a", 2, 1, 2}, {"b", 1, 0, 2}, {"b", 2, 1, 2}};
    struct gr_world w = {.rank = 1, .n_rank = 4, .ranks = facts};
    struct gr_ranks r;
    cr_expect(!choose(0, 0, LAYER, &w, &r) && r.n_rank == 4 && r.n_shard == 1);
    cr_expect(!choose(0, 0, TENSOR, &w, &r) && r.n_rank == 4 && r.n_shard == 2,
              "those of a machine share layers");
    cr_expect(!choose(0, 4, TENSOR, &w, &r) && r.n_rank == 4 && r.n_shard == 4);
    cr_expect_eq(choose(2, 0, LAYER, &w, &r), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "mpirun"), "%s", gr_error());
    facts[3].n_local = 1;
    cr_expect_eq(choose(0, 0, TENSOR, &w, &r), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "--shards"), "%s", gr_error());
}
