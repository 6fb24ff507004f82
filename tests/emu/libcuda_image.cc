// The emulated driver: what fatbins have code for. Kernels themselves are the front's.
#include "tests/emu/libcuda_state.hpp"

#include <cstring>

namespace drv
{

// --- fatbins: pieces of machine code and PTX, each with its architecture and version ---

struct fatbin_header { // as nvcc 12 and 13 write it
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; // of all pieces
};

struct fatbin_piece {
    uint16_t kind, attributes; // 1: PTX, 2: ELF
    uint32_t header_bytes;
    uint64_t bytes; // behind the header
    uint32_t packed_bytes, options;
    uint16_t minor, major; // of the PTX ISA, or of the ELF's ABI
    uint32_t arch;         // 90
    uint32_t name, name_bytes;
    uint64_t flags;
};

enum : uint32_t { FATBIN = 0xba55ed50 };
enum : uint64_t { ONLY_THIS = 1 << 20 }; // sm_90a

// The newest PTX ISA that a driver compiles (PTX ISA, "Release Notes"), and the newest ABI of ELF
// that it loads: 1.7 is of CUDA 12, 1.8 of 13.
static int newest_ptx(int driver)
{
    static const int of_12[] = {80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
    int major = driver / 1000, minor = driver % 1000 / 10;
    return major > 12 ? (major - 4) * 10 + minor : major < 12 ? 78 : of_12[minor < 9 ? minor : 9];
}

static int newest_abi(int driver)
{
    return driver / 1000 - 5;
}

// Machine code is taken before PTX, and refused without a look at what else there is.
static int check_fatbin(const unsigned char *image)
{
    fatbin_header h;
    fatbin_piece p;
    int result = CU_NO_BINARY_FOR_GPU;
    memcpy(&h, image, sizeof h);
    const unsigned char *at = image + h.header_bytes, *end = at + h.bytes;
    for (; at < end; at += p.header_bytes + p.bytes) {
        memcpy(&p, at, sizeof p);
        const int cc = S.opt.cc, arch = (int)p.arch;
        const bool fits = p.flags & ONLY_THIS ? cc == arch : cc >= arch && cc / 10 == arch / 10;
        if (p.kind == 2 && fits)
            return p.minor <= newest_abi(S.opt.driver) ? CU_OK : CU_INVALID_IMAGE;
        if (p.kind == 1 && cc >= arch)
            result = p.major * 10 + p.minor <= newest_ptx(S.opt.driver)
                         ? CU_OK
                         : CU_UNSUPPORTED_PTX_VERSION;
    }
    return result;
}

int check_image(const void *image)
{
    const uint32_t magic = FATBIN;
    if (!strncmp((const char *)image, (const char *)&magic, sizeof magic)) // a name may be shorter
        return check_fatbin((const unsigned char *)image);
    return CU_OK;
}

} // namespace drv
