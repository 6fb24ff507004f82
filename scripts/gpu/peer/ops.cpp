// peer_ops [-cpu] [-tiny] [-r REPEATS] OP TYPE,.. N,..: single operations of llama.cpp's backend at the shapes of bench_ops -d 0,
// a graph of so many copies of the weights or cells that no cache holds them. OP: matmul (N tokens), attn (the last N tokens of
// one text), attn_decode (one token of each of N texts), attn_prefill (N tokens), kv_shift (N cells), sample (N rows: the chain on
// the CPU, with the way of the logits to it). Its errors are those of f64 arithmetic on the same blocks, at places drawn.
#include <cstring>
#include <map>
#include <random>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#include "rows.hpp"

namespace
{

bool tiny;
int repeats = 30;
ggml_backend_t backend;
std::mt19937_64 rng(1);

double rotated_bytes()
{
    return tiny ? 1 << 14 : 320 << 20;
}

ggml_type type_of(const std::string &name)
{
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (const char *s = ggml_type_name(ggml_type(t)); s && name == s)
            return ggml_type(t);
    std::fprintf(stderr, "peer_ops: no type %s\n", name.c_str());
    std::exit(2);
}

// n_row rows of n normal numbers: a few are drawn, the others copies of them.
std::vector<char> drawn(ggml_type type, int64_t n_row, int64_t n)
{
    const size_t row = ggml_row_size(type, n);
    const int64_t n_drawn = std::min<int64_t>(16, n_row);
    std::vector<float> x(n_drawn * n), importance(n, 1);
    std::vector<char> out(n_row * row);
    std::normal_distribution<float> normal;
    for (float &v : x)
        v = normal(rng);
    if (type == GGML_TYPE_F32)
        std::memcpy(out.data(), x.data(), n_drawn * row);
    else
        ggml_quantize_chunk(type, x.data(), out.data(), 0, n_drawn, n, importance.data());
    for (int64_t r = n_drawn; r < n_row; r++)
        std::memcpy(&out[r * row], &out[r % n_drawn * row], row);
    return out;
}

void numbers(ggml_type type, const char *from, float *to, int64_t n)
{
    if (type == GGML_TYPE_F32)
        std::memcpy(to, from, n * sizeof *to);
    else
        ggml_get_type_traits(type)->to_float(from, to, n);
}

struct sums {
    double wrong = 0, all = 0;
    void add(double got, double want)
    {
        wrong += (got - want) * (got - want);
        all += want * want;
    }
    double error() const
    {
        return std::sqrt(wrong / (all > 0 ? all : 1));
    }
};

// A graph, the memory of what it reads, and what its first copy gives.
struct graph {
    ggml_context *inputs, *nodes;
    ggml_cgraph *of;
    ggml_backend_buffer_t memory = nullptr;
    ggml_gallocr_t allocr;
    int n = 0;

    graph()
    {
        inputs = ggml_init({ggml_tensor_overhead() * 1024, nullptr, true});
        nodes = ggml_init({ggml_tensor_overhead() * 4096 + ggml_graph_overhead_custom(4096, false), nullptr, true});
        of = ggml_new_graph_custom(nodes, 4096, false);
        allocr = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    }
    ~graph()
    {
        ggml_gallocr_free(allocr);
        ggml_backend_buffer_free(memory);
        ggml_free(nodes);
        ggml_free(inputs);
    }
    ggml_tensor *input(ggml_type type, int64_t a, int64_t b, int64_t c = 1, int64_t d = 1)
    {
        return ggml_new_tensor_4d(inputs, type, a, b, c, d);
    }
    void add(ggml_tensor *t)
    {
        if (n++ == 0)
            ggml_set_output(t);
        ggml_build_forward_expand(of, t);
    }
    void take_memory()
    {
        memory = ggml_backend_alloc_ctx_tensors(inputs, backend);
        if (!memory || !ggml_gallocr_alloc_graph(allocr, of)) {
            std::fprintf(stderr, "peer_ops: no memory\n");
            std::exit(2);
        }
    }
    void run(int times)
    {
        for (int i = 0; i < times; i++)
            if (ggml_backend_graph_compute_async(backend, of) != GGML_STATUS_SUCCESS) {
                std::fprintf(stderr, "peer_ops: a graph failed\n");
                std::exit(1);
            }
        ggml_backend_synchronize(backend);
    }
    std::vector<double> times()
    {
        return measure(repeats, n, [this](int k) { run(k); });
    }
};

void set(ggml_tensor *t, const std::vector<char> &data)
{
    ggml_backend_tensor_set(t, data.data(), 0, std::min(data.size(), ggml_nbytes(t)));
}

std::vector<float> fetched(const ggml_tensor *t)
{
    std::vector<float> out(ggml_nelements(t));
    ggml_backend_tensor_get(t, out.data(), 0, ggml_nbytes(t));
    return out;
}

int copies_of(double bytes)
{
    return std::min(128, std::max(1, int(std::ceil(rotated_bytes() / bytes))));
}

// ---- products ----

double matmul_error(ggml_type type, const std::vector<char> &w, const std::vector<char> &x, const std::vector<float> &y,
                    int64_t n_out, int64_t n_in, int64_t n_tok)
{
    sums s;
    std::vector<float> a(n_in), b(n_in);
    for (int i = 0; i < 64; i++) {
        const int64_t o = rng() % n_out;
        numbers(type, &w[o * ggml_row_size(type, n_in)], a.data(), n_in);
        for (int64_t t = 0; t < n_tok; t += std::max<int64_t>(1, n_tok / 64)) {
            numbers(GGML_TYPE_F32, &x[t * n_in * 4], b.data(), n_in);
            double want = 0;
            for (int64_t c = 0; c < n_in; c++)
                want += double(a[c]) * double(b[c]);
            s.add(y[t * n_out + o], want);
        }
    }
    return s.error();
}

void matmul(const std::string &name, int64_t n_tok, int64_t n_out, int64_t n_in)
{
    const ggml_type type = type_of(name);
    const double bytes = double(n_out) * ggml_row_size(type, n_in);
    const auto w = drawn(type, n_out, n_in), x = drawn(GGML_TYPE_F32, n_tok, n_in);
    graph g;
    std::vector<ggml_tensor *> weights;
    ggml_tensor *input = g.input(GGML_TYPE_F32, n_in, n_tok), *first = nullptr;
    for (int i = 0; i < copies_of(bytes); i++) {
        weights.push_back(g.input(type, n_in, n_out));
        ggml_tensor *y = ggml_mul_mat(g.nodes, weights.back(), input);
        first = first ? first : y;
        g.add(y);
    }
    g.take_memory();
    set(input, x);
    for (ggml_tensor *t : weights)
        set(t, w);
    g.run(1);
    const double error = matmul_error(type, w, x, fetched(first), n_out, n_in, n_tok);
    print({"matmul", name, std::to_string(n_out) + "x" + std::to_string(n_in), n_tok, bytes, 2.0 * n_tok * n_out * n_in, error,
           bytes * g.n / 1e6},
          g.times());
}

// ---- attention ----

struct heads {
    int64_t n, n_kv, d;
};

// What the last n_each tokens of each of n_seq texts of n_kv cells see; K and V are [n_seq][n_kv][heads.n_kv][d].
double attn_error(ggml_type type, const std::vector<char> &k, const std::vector<char> &v, const std::vector<char> &q,
                  const std::vector<float> &y, int64_t n_kv, int64_t n_seq, int64_t n_each, heads h)
{
    sums s;
    const size_t head = ggml_row_size(type, h.d), row = head * h.n_kv;
    std::vector<float> x(h.d);
    std::vector<double> want(h.d);
    for (int i = 0; i < 64; i++) {
        const int64_t at = rng() % n_seq, t = rng() % n_each, of = rng() % h.n, seen = n_kv - n_each + t + 1;
        // q: [n_seq][n][n_each][d], y: [n_seq][n_each][n][d]
        const float *my = reinterpret_cast<const float *>(q.data()) + ((at * h.n + of) * n_each + t) * h.d;
        const size_t first = size_t(at) * n_kv * row + size_t(of / (h.n / h.n_kv)) * head;
        std::vector<double> p(seen);
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; j++) {
            numbers(type, &k[first + j * row], x.data(), h.d);
            for (int64_t c = 0; c < h.d; c++)
                p[j] += double(my[c]) * double(x[c]) / std::sqrt(double(h.d));
            most = std::max(most, p[j]);
        }
        std::fill(want.begin(), want.end(), 0);
        for (int64_t j = 0; j < seen; j++) {
            const double e = std::exp(p[j] - most);
            numbers(type, &v[first + j * row], x.data(), h.d);
            for (int64_t c = 0; c < h.d; c++)
                want[c] += e * double(x[c]);
            sum += e;
        }
        for (int64_t c = 0; c < h.d; c++)
            s.add(y[((at * n_each + t) * h.n + of) * h.d + c], want[c] / sum);
    }
    return s.error();
}

// [n_seq][n_each][n_kv], of each text its own, as llama.cpp has it.
std::vector<char> mask_of(int64_t n_kv, int64_t n_seq, int64_t n_each)
{
    std::vector<char> out(size_t(n_kv) * n_seq * n_each * 2);
    ggml_fp16_t *m = reinterpret_cast<ggml_fp16_t *>(out.data());
    const ggml_fp16_t none = ggml_fp32_to_fp16(-INFINITY), all = ggml_fp32_to_fp16(0);
    for (int64_t t = 0; t < n_seq * n_each; t++)
        for (int64_t j = 0; j < n_kv; j++)
            m[t * n_kv + j] = j <= n_kv - n_each + t % n_each ? all : none;
    return out;
}

void attn(const std::string &op, const std::string &name, int64_t n_kv, int64_t n_seq, int64_t n_each, heads h)
{
    const ggml_type type = type_of(name);
    const double bytes = 2.0 * n_seq * n_kv * ggml_row_size(type, h.d) * h.n_kv;
    const auto k = drawn(type, n_seq * n_kv, h.n_kv * h.d), v = drawn(type, n_seq * n_kv, h.n_kv * h.d);
    const auto q = drawn(GGML_TYPE_F32, n_seq * h.n * n_each, h.d);
    graph g;
    std::vector<ggml_tensor *> keys, values;
    ggml_tensor *query = g.input(GGML_TYPE_F32, h.d, n_each, h.n, n_seq), *first = nullptr;
    ggml_tensor *mask = g.input(GGML_TYPE_F16, n_kv, n_each, 1, n_seq);
    for (int i = 0; i < copies_of(bytes); i++) {
        keys.push_back(g.input(type, h.d, h.n_kv, n_kv, n_seq));
        values.push_back(g.input(type, h.d, h.n_kv, n_kv, n_seq));
        ggml_tensor *y = ggml_flash_attn_ext(g.nodes, query, ggml_permute(g.nodes, keys.back(), 0, 2, 1, 3),
                                             ggml_permute(g.nodes, values.back(), 0, 2, 1, 3), mask,
                                             1 / std::sqrt(float(h.d)), 0, 0);
        first = first ? first : y;
        g.add(y);
    }
    g.take_memory();
    set(query, q);
    set(mask, mask_of(n_kv, n_seq, n_each));
    for (size_t i = 0; i < keys.size(); i++)
        set(keys[i], k), set(values[i], v);
    g.run(1);
    const double error = attn_error(type, k, v, q, fetched(first), n_kv, n_seq, n_each, h);
    const double seen = double(n_seq) * (double(n_each) * (n_kv - n_each) + double(n_each) * (n_each + 1) / 2);
    char shape[64];
    std::snprintf(shape, sizeof shape, "%lld cells, %lld/%lld x %lld", (long long)n_kv, (long long)h.n, (long long)h.n_kv,
                  (long long)h.d);
    print({op, name, shape, n_seq * n_each, bytes, 4 * seen * h.n * h.d, error, bytes * g.n / 1e6}, g.times());
}

// ---- cells ----

// All K of a layer turn, as its K-shift has them do: f16 in place, others by way of f32.
void shift(const std::string &name, int64_t n_cell)
{
    const ggml_type type = type_of(name);
    const int64_t d = 128, n_head = 8;
    const double bytes = double(n_cell) * ggml_row_size(type, d) * n_head;
    const auto k = drawn(type, n_cell, n_head * d);
    graph g;
    std::vector<ggml_tensor *> caches;
    ggml_tensor *by = g.input(GGML_TYPE_I32, n_cell, 1);
    for (int i = 0; i < copies_of(bytes); i++) {
        ggml_tensor *cache = g.input(type, d, n_head, n_cell), *t = cache;
        caches.push_back(cache);
        if (ggml_is_quantized(type)) {
            t = ggml_rope_ext(g.nodes, ggml_cast(g.nodes, t, GGML_TYPE_F32), by, nullptr, int(d), 0, 8192, 5e5f, 1, 0, 1, 32, 1);
            t = ggml_cpy(g.nodes, t, cache);
        } else {
            t = ggml_rope_ext_inplace(g.nodes, t, by, nullptr, int(d), 0, 8192, 5e5f, 1, 0, 1, 32, 1);
        }
        g.add(t);
    }
    g.take_memory();
    std::vector<int32_t> positions(n_cell);
    for (int64_t j = 0; j < n_cell; j++)
        positions[j] = int32_t(1 + j % 7);
    ggml_backend_tensor_set(by, positions.data(), 0, ggml_nbytes(by));
    for (ggml_tensor *t : caches)
        set(t, k);
    print({"kv_shift", name, "8 x 128", n_cell, 2 * bytes, 0, NAN, bytes * g.n / 1e6}, g.times());
}

// ---- sampling ----

void sample(int64_t n_row, int64_t n_vocab)
{
    const auto logits = drawn(GGML_TYPE_F32, n_row, n_vocab);
    graph g;
    ggml_tensor *on_device = g.input(GGML_TYPE_F32, n_vocab, n_row);
    g.memory = ggml_backend_alloc_ctx_tensors(g.inputs, backend);
    set(on_device, logits);
    llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(0.95f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(0.05f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(0.8f));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
    std::vector<llama_token_data> all(n_vocab);
    const auto times = measure(repeats, 1, [&](int n) {
        for (int i = 0; i < n; i++) {
            const auto x = fetched(on_device);
            for (int64_t r = 0; r < n_row; r++) {
                for (int64_t t = 0; t < n_vocab; t++)
                    all[t] = {llama_token(t), x[r * n_vocab + t], 0};
                llama_token_data_array list = {all.data(), all.size(), -1, false};
                llama_sampler_apply(chain, &list);
            }
        }
    });
    llama_sampler_free(chain);
    print({"sample", "f32", std::to_string(n_vocab) + ", top-k 40, top-p .95, min-p", n_row, 4.0 * n_row * n_vocab, 0, NAN,
           4e-6 * n_row * n_vocab},
          times);
}

void run(const std::string &op, const std::string &type, int64_t n)
{
    const heads h = tiny ? heads{8, 2, 128} : heads{32, 8, 128};
    const int64_t n_short = tiny ? 64 : 4096;
    if (op == "matmul" && tiny)
        matmul(type, n, 64, 256);
    else if (op == "matmul")
        for (const auto &[n_out, n_in] : {std::pair{4096, 4096}, {14336, 4096}, {4096, 14336}, {128256, 4096}}) {
            if ((n_out != n_in && n_out < 100000) || n < 64)
                matmul(type, n, n_out, n_in);
        }
    else if (op == "attn")
        for (int64_t n_kv : {n_short, 8 * n_short})
            attn(op, type, n_kv, 1, n, h);
    else if (op == "attn_decode")
        for (int64_t n_kv : {n_short, 8 * n_short})
            attn(op, type, n_kv, n, 1, h);
    else if (op == "attn_prefill")
        attn(op, type, n, 1, n, h);
    else if (op == "kv_shift")
        shift(type, n);
    else if (op == "sample")
        sample(n, tiny ? 512 : 128256);
    else
        std::fprintf(stderr, "peer_ops: no operation %s\n", op.c_str()), std::exit(2);
}

} // namespace

int main(int argc, char **argv)
{
    int i = 1;
    bool cpu = false;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const std::string flag = argv[i];
        if (flag == "-cpu")
            cpu = true;
        else if (flag == "-tiny")
            tiny = true;
        else if (flag == "-r" && i + 1 < argc)
            repeats = std::max(1, std::atoi(argv[++i]));
    }
    if (argc - i != 3) {
        std::fprintf(stderr, "usage: peer_ops [-cpu] [-tiny] [-r REPEATS] OP TYPE,.. N,..\n");
        return 2;
    }
    ggml_backend_load_all();
    backend = ggml_backend_init_by_type(cpu ? GGML_BACKEND_DEVICE_TYPE_CPU : GGML_BACKEND_DEVICE_TYPE_GPU, nullptr);
    if (!backend) {
        std::fprintf(stderr, "peer_ops: llama.cpp finds no %s\n", cpu ? "processor" : "GPU");
        return 2;
    }
    for (const std::string &type : words(argv[i + 1]))
        for (const std::string &n : words(argv[i + 2]))
            run(argv[i], type, std::atoll(n.c_str()));
    ggml_backend_free(backend);
    return 0;
}
