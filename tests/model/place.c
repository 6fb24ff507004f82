/* Which layer goes to which device. */
#include <criterion/criterion.h>

#include "base/checked.h"
#include "model/model.h"

/* What llama.cpp gives: layers, -ngl, shares, then how many layers (the output counted) the CPU and
 * each device get. */
static const struct {
    int32_t n_layer, n_gpu;
    float split[4];
    int n_split, want[5];
} cases[] = {
    {32, 10, {1}, 1, {23, 10}},
    {42, 15, {1}, 1, {28, 15}},
    {32, 6, {1}, 1, {27, 6}},
    {32, 0, {1}, 1, {33, 0}},
    {32, 99, {1}, 1, {0, 33}},
    {1, 1, {1}, 1, {1, 1}},
    {32, 99, {1, 1}, 2, {0, 17, 16}},
    {32, 99, {3, 1}, 2, {0, 25, 8}},
    {32, 20, {1, 1}, 2, {13, 10, 10}},
    {80, 99, {1, 1, 1, 1}, 4, {0, 21, 20, 20, 20}},
    {80, 60, {2, 1, 1}, 3, {21, 30, 15, 15}},
    {36, 37, {0, 1, 1}, 3, {0, 0, 19, 18}},
    {32, 33, {7, 1}, 2, {0, 29, 4}},
};

Test(place, C16_output_first_then_backwards)
{
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        struct gr_placement p;
        int n[5] = {0};
        gr_place_layers(&p, cases[i].n_layer, cases[i].n_gpu, cases[i].split, cases[i].n_split);
        for (int32_t il = 0; il <= cases[i].n_layer; il++) {
            cr_assert(p.layer[il] < p.n_device);
            cr_expect(il == 0 || p.layer[il] >= p.layer[il - 1], "case %zu, layer %d", i, il);
            n[p.layer[il]]++;
        }
        for (int d = 0; d <= cases[i].n_split; d++)
            cr_expect_eq(n[d], cases[i].want[d], "case %zu, device %d: %d", i, d, n[d]);
        cr_expect_eq(gr_place_n_gpu(&p, cases[i].n_layer), cases[i].n_layer + 1 - n[0]);
    }
}
