// peer_model logits MODEL OUT TOKEN,.. | peer_model load MODEL mmap|none: what llama.cpp says of a model file with all its layers
// on the GPU (-ngl 0 before the command: on the CPU). `logits` writes those of each token, f32, to OUT. `load` prints how long it
// takes from nothing to the logits of one token, as a row.
#include <cstdlib>
#include <cstring>

#include "llama.h"
#include "rows.hpp"

namespace
{

struct session {
    llama_model *model = nullptr;
    llama_context *ctx = nullptr;

    session(const char *path, int n_layer, int n_ctx, bool mapped)
    {
        llama_model_params m = llama_model_default_params();
        m.n_gpu_layers = n_layer;
        m.load_mode = mapped ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
        model = llama_model_load_from_file(path, m);
        llama_context_params c = llama_context_default_params();
        c.n_ctx = c.n_batch = c.n_ubatch = uint32_t(n_ctx);
        c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        ctx = model ? llama_init_from_model(model, c) : nullptr;
        if (!ctx)
            std::fprintf(stderr, "peer_model: %s: not loaded\n", path), std::exit(1);
    }
    ~session()
    {
        llama_free(ctx);
        llama_model_free(model);
    }
    // Logits of each token, [n][n_vocab].
    const float *decode(const std::vector<llama_token> &tokens)
    {
        llama_batch b = llama_batch_init(int32_t(tokens.size()), 0, 1);
        b.n_tokens = int32_t(tokens.size());
        for (int32_t i = 0; i < b.n_tokens; i++) {
            b.token[i] = tokens[size_t(i)], b.pos[i] = i, b.n_seq_id[i] = 1;
            b.seq_id[i][0] = 0, b.logits[i] = 1;
        }
        if (llama_decode(ctx, b))
            std::fprintf(stderr, "peer_model: llama_decode failed\n"), std::exit(1);
        llama_synchronize(ctx);
        llama_batch_free(b);
        return llama_get_logits(ctx);
    }
};

int logits(const char *path, const char *out, const std::string &list, int n_layer)
{
    std::vector<llama_token> tokens;
    for (const std::string &word : words(list))
        tokens.push_back(std::atoi(word.c_str()));
    session s(path, n_layer, int(tokens.size()), true);
    const float *x = s.decode(tokens);
    const size_t n = tokens.size() * size_t(llama_vocab_n_tokens(llama_model_get_vocab(s.model)));
    FILE *f = std::fopen(out, "wb");
    const bool written = f && std::fwrite(x, sizeof *x, n, f) == n;
    if (!f || std::fclose(f) || !written)
        return std::fprintf(stderr, "peer_model: %s: not written\n", out), 1;
    return 0;
}

int load(const char *path, bool mapped, int n_layer)
{
    const double from = now();
    session s(path, n_layer, 512, mapped);
    s.decode({1});
    print({"load", "", mapped ? "mmap" : "no mmap", 1, double(llama_model_size(s.model)), 0, NAN, 0}, {now() - from});
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    int n_layer = 999;
    if (argc > 2 && !std::strcmp(argv[1], "-ngl")) {
        n_layer = std::atoi(argv[2]);
        argc -= 2, argv += 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();
    if (argc == 5 && !std::strcmp(argv[1], "logits"))
        return logits(argv[2], argv[3], argv[4], n_layer);
    if (argc == 4 && !std::strcmp(argv[1], "load"))
        return load(argv[2], !std::strcmp(argv[3], "mmap"), n_layer);
    std::fprintf(stderr, "usage: peer_model [-ngl N] logits MODEL OUT TOKEN,.. | load MODEL mmap|none\n");
    return 2;
}
