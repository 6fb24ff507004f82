/* Matrices between the rows of a file and the packed layout. */
#include "cuda/launch.h"
#include "gr/kernel/pack.h"
#include "gr/pack.h"
#include "gr/status.h"

static int same_shape(const struct gr_ten *rows, const struct gr_ten *packed)
{
    if (gr_pack_is(rows->dtype) && rows->dtype == packed->dtype && !rows->packed &&
        packed->packed && rows->batch == packed->batch && rows->rows == packed->rows &&
        rows->cols == packed->cols)
        return 0;
    return gr_fail(GR_E_INTERNAL, "repacking: expected rows and tiles of one computed type and "
                                  "shape, found other ones");
}

static int note(struct gr_launcher *l, const char *kernel, struct gr_grid grid,
                const struct gr_ten *rows, const struct gr_ten *packed)
{
    struct gr_pack_args a = {*rows, *packed};
    return gr_launch(l, kernel, grid, 256, 0, &a, sizeof a);
}

static uint32_t parts(int64_t n)
{
    return (uint32_t)((n + 255) / 256);
}

int gr_cuda_pack(struct gr_launcher *l, const struct gr_ten *rows, const struct gr_ten *packed)
{
    int err = same_shape(rows, packed);
    int64_t n_tile = (rows->rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS;
    struct gr_grid grid = {(uint32_t)n_tile, parts(gr_pack_tile_bytes(rows->dtype, rows->cols) / 4),
                           (uint32_t)rows->batch};
    return err ? err : note(l, "gr_pack_tiles", grid, rows, packed);
}

int gr_cuda_unpack(struct gr_launcher *l, const struct gr_ten *packed, const struct gr_ten *rows)
{
    int err = same_shape(rows, packed);
    struct gr_pack_file f = gr_pack_file(rows->dtype);
    struct gr_grid grid = {(uint32_t)rows->rows, parts(rows->cols / f.block * f.bytes),
                           (uint32_t)rows->batch};
    return err ? err : note(l, "gr_pack_rows", grid, rows, packed);
}
