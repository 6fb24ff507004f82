/* gpurun replay, as a program: a session against llama.cpp's answers, and every way in which a
 * session can be wrong. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "gpurun.h"
#include "gr/status.h"
#include "tiny.h"

#define GOLDEN GR_SOURCE_DIR "/tests/golden/replay"

/* Two arrays: the same header; integers equal, floats within a normalised mean squared error of
 * 1e-10. */
static void compare(const char *name, char *want, char *got, size_t n)
{
    size_t head = 10 + (size_t)(unsigned char)want[8];
    double error = 0, power = 0;
    cr_assert(n >= head && !memcmp(want, got, head), "%s: another header", name);
    if (!strstr(want + 10, "<f4")) {
        cr_assert(!memcmp(want, got, n), "%s", name);
        return;
    }
    for (size_t i = head; i < n; i += 4) {
        float a, b;
        memcpy(&a, want + i, 4), memcpy(&b, got + i, 4);
        cr_assert(isfinite(b), "%s", name);
        error += ((double)a - b) * ((double)a - b), power += (double)a * a;
    }
    cr_assert(power > 0 && error / power < 1e-10, "%s: %g", name, error / power);
}

Test(replay, agrees_with_llama_cpp)
{
    char path[512];
    int n_files = 0;
    struct outcome o = GPURUN(NULL, "replay", GOLDEN "/session.json", "-o", tiny_path("arrays"));
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_assert_eq(o.n_out, 0);
    DIR *dir = opendir(GOLDEN "/expected");
    cr_assert_not_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char *want, *got;
        size_t n, n_got;
        if (*e->d_name == '.')
            continue;
        snprintf(path, sizeof path, GOLDEN "/expected/%s", e->d_name);
        cr_assert_eq(gr_file_slurp(path, 1 << 20, &want, &n), 0, "%s", gr_error());
        snprintf(path, sizeof path, "%s/%s", tiny_path("arrays"), e->d_name);
        cr_assert_eq(gr_file_slurp(path, 1 << 20, &got, &n_got), 0, "%s", gr_error());
        cr_assert_eq(n, n_got, "%s: %zu bytes expected, %zu found", e->d_name, n, n_got);
        compare(e->d_name, want, got, n);
        gr_free(want), gr_free(got);
        n_files++;
    }
    closedir(dir);
    cr_assert_eq(n_files, 29);
}

/* Writes a session, runs it, and looks for a piece of text in what is said. */
static void expect(int code, const char *session, const char *says)
{
    const char *path = tiny_path("s.json");
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(session, f) >= 0 && fclose(f) == 0);
    struct outcome o =
        GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "-o", tiny_path("arrays"));
    cr_assert(o.exit_code == code && strstr(o.err, says),
              "%s\nexit code %d, \"%s\" expected\nexit code %d found: %s", session, code, says,
              o.exit_code, o.err);
    cr_assert_eq(o.n_out, 0);
}

#define OPS(x) "{\"ops\": [" x "]}"
#define CONTEXT(x) "{\"ops\": [], \"context\": {" x "}}"
#define DECODE(tokens, pos, seq, logits)                                                           \
    "{\"op\": \"decode\", \"tokens\": " tokens ", \"pos\": " pos ", \"seq\": " seq                 \
    ", \"logits\": " logits "}"
#define GOOD DECODE("[1]", "[0]", "[[0]]", "[1]")

Test(replay, malformed_sessions)
{
    expect(2, "", "s.json: line 1, column 0: '[' or '{' expected");
    expect(2, "{\"ops\": [", "s.json: line 1");
    expect(2, "{\"ops\": [], \"ops\": []}", "duplicate object key");
    expect(2, "[]", "s.json: an object expected, a list found");
    expect(2, "{}", "s.json: ops: a list expected, nothing found");
    expect(2, "{\"ops\": {}}", "ops: a list expected, an object found");
    expect(2, "{\"ops\": [], \"model\": 3}", "model: a string expected, an integer found");
    expect(2, "{\"ops\": [], \"context\": 3}", "context: an object expected, an integer found");
    expect(2, OPS(GOOD ", 7"),
           "op 1: an object with the name of an operation in \"op\" expected, an integer found");
    expect(2, OPS("{}"),
           "op 0: an object with the name of an operation in \"op\" expected, none found");
    expect(2, OPS("{\"op\": \"fly\"}"), "op 0: unknown operation 'fly'");
    expect(2, OPS("{\"op\": \"seq_rm\", \"seq\": 0, \"p0\": 0}"),
           "op 0: p1: an integer expected, nothing found");
    expect(2, OPS("{\"op\": \"seq_keep\", \"seq\": \"0\"}"),
           "op 0: seq: an integer expected, a string found");
    expect(2, OPS("{\"op\": \"seq_keep\", \"seq\": 0.5}"),
           "op 0: seq: an integer expected, a number found");
    expect(2, OPS("{\"op\": \"seq_keep\", \"seq\": 4294967296}"),
           "seq: -2147483648 to 2147483647 expected, 4294967296");
    expect(2, OPS(DECODE("3", "[0]", "[[0]]", "[1]")),
           "op 0: tokens: a list expected, an integer found");
    expect(2, OPS("{\"op\": \"decode\", \"tokens\": [1]}"),
           "op 0: pos: a list expected, nothing found");
    expect(2, OPS(DECODE("[1]", "[]", "[[0]]", "[1]")),
           "op 0: pos: 1 items expected, as in tokens, 0 found");
    expect(2, OPS(DECODE("[1]", "[0]", "[[0], [0]]", "[1]")),
           "op 0: seq: 1 items expected, as in tokens, 2 found");
    expect(2, OPS(DECODE("[1]", "[0]", "[0]", "[1]")),
           "seq: a list of sequences for each token expected, an integer");
    expect(2, OPS(DECODE("[1]", "[0]", "[[null]]", "[1]")),
           "op 0: seq: an integer expected, null found");
    expect(2, OPS(DECODE("[1]", "[0]", "[[0]]", "[[1]]")),
           "op 0: logits: an integer expected, a list found");
}

Test(replay, contexts)
{
    expect(
        0,
        CONTEXT(
            "\"n_ctx\": 512, \"type_k\": \"bf16\", \"rope_freq_base\": 5e4, \"swa_full\": false"),
        "");
    expect(2, CONTEXT("\"n_ctx\": -1"), "n_ctx: 0 to 67108864 expected, -1 found");
    expect(2, CONTEXT("\"n_ctx\": \"many\""), "n_ctx: an integer expected, a string found");
    expect(2, CONTEXT("\"n_seq_max\": 257"), "n_seq_max: 1 to 256 expected, 257 found");
    expect(2, CONTEXT("\"n_rollback\": -1"), "n_rollback: 0 to 4095 expected, -1 found");
    expect(0, CONTEXT("\"n_rollback\": 4"), "");
    expect(2, CONTEXT("\"n_ctxx\": 5"), "context: unknown key 'n_ctxx'");
    expect(2, CONTEXT("\"type_k\": \"f64\""),
           "type_k: one of " GR_CACHE_TYPES " expected, f64 found");
    expect(2, CONTEXT("\"type_v\": 1"),
           "type_v: one of " GR_CACHE_TYPES " expected, an integer found");
    expect(2, CONTEXT("\"rope_scaling\": \"long\""),
           "rope_scaling: none, linear, yarn or longrope expected, long found");
    expect(2, CONTEXT("\"rope_freq_base\": true"), "rope_freq_base: a number expected, true found");
    expect(2, CONTEXT("\"embeddings\": 2"), "embeddings: 0 to 1 expected, 2 found");
    expect(2, CONTEXT("\"pooling\": \"sum\""), "none, mean, cls, last or rank expected, sum found");
    expect(2, CONTEXT("\"causal\": 0"),
           "causal 0: attention that is not causal is not in this version");
    expect(0, CONTEXT("\"pooling\": \"none\", \"embeddings\": 0, \"causal\": 1"), "");
    expect(2, CONTEXT("\"kv_unified\": 2"), "kv_unified: 0 to 1 expected, 2 found");
    expect(0, CONTEXT("\"kv_unified\": false, \"n_seq_max\": 2"), "");
}

/* Operations that this version does not have are refused before anything is written. */
Test(replay, refused_before_it_runs)
{
    expect(2, OPS(GOOD ", {\"op\": \"state_save\", \"slot\": 16}"),
           "op 1: slot: 0 to 15 expected, 16 found");
    expect(2, OPS(GOOD ", {\"op\": \"state_load\"}"), "op 1: slot: an integer expected");
    expect(2, OPS("{\"op\": \"encode\"}"), "op 0: tokens: a list expected, nothing found");
    cr_assert_eq(access(tiny_path("arrays"), F_OK), -1);
    expect(2, OPS("{\"op\": \"seq_keep\", \"seq\": 1}"),
           "op 0: sequence: 0 to 0 expected, 1 found");
    expect(2, OPS("{\"op\": \"seq_div\", \"seq\": 0, \"p0\": 0, \"p1\": -1, \"d\": 0}"),
           "op 0: sequence 0: divisor");
    expect(2, OPS("{\"op\": \"state_save\", \"slot\": 3}, {\"op\": \"state_load\", \"slot\": 4}"),
           "op 1: slot 4: a state_save before it expected, none found");
}

/* A decode of n tokens of sequence 0 from `pos` on, as JSON. */
static char *print_decode(char *p, int pos, int n)
{
    static const char *const lists[] = {"tokens", "pos", "seq", "logits"};
    p += sprintf(p, "{\"op\": \"decode\"");
    for (int k = 0; k < 4; k++) {
        p += sprintf(p, ", \"%s\": [", lists[k]);
        for (int i = 0; i < n; i++) {
            *p = ',';
            p += i > 0;
            p += sprintf(p, k == 2 ? "[%d]" : "%d", k == 1 ? pos + i : 0);
        }
        p += sprintf(p, "]");
    }
    return p + sprintf(p, "}");
}

/* The last n integers of an array. */
static void written(const char *name, int op, int32_t *out, size_t n)
{
    char path[256], *data;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s_%d.npy", tiny_path("arrays"), name, op);
    cr_assert_eq(gr_file_slurp(path, 1 << 20, &data, &bytes), 0, "%s", gr_error());
    memcpy(out, data + bytes - 4 * n, 4 * n);
    gr_free(data);
}

static int32_t written_rc(int op)
{
    int32_t rc;
    written("rc", op, &rc, 1);
    return rc;
}

/* With a pool for each sequence n_ctx is shared out, and seq_keep finds no other sequence in the
 * pool of the one that is kept. */
Test(replay, pools_of_their_own)
{
    static const int32_t kept[2][4] = {{0, 1, 0, 0}, {-1, -1, 0, 0}};
    char session[8192], *p;
    for (int unified = 0; unified < 2; unified++) {
        int32_t pos[4];
        p = session +
            sprintf(session,
                    "{\"context\": {\"n_ctx\": 512, \"n_seq_max\": 2, \"kv_unified\": %d}, "
                    "\"ops\": [" DECODE(
                        "[5, 6, 7]", "[0, 1, 0]", "[[0], [0], [1]]",
                        "[0, 1, 1]") ", "
                                     "{\"op\": \"seq_keep\", \"seq\": 1}, {\"op\": \"clear\"}, ",
                    unified);
        p = print_decode(p, 0, 256);
        p += sprintf(p, ", ");
        p = print_decode(p, 256, 1);
        sprintf(p, "]}");
        expect(0, session, "");
        written("pos", 1, pos, 4);
        cr_expect(!memcmp(pos, kept[unified], sizeof pos), "%d %d %d %d", pos[0], pos[1], pos[2],
                  pos[3]);
        cr_expect_eq(written_rc(3), 0);
        cr_expect_eq(written_rc(4), !unified, "257 tokens in 256 cells of 512");
    }
}

/* encode is for models that keep nothing. */
Test(replay, encode_needs_a_model_without_a_cache)
{
    expect(2,
           OPS("{\"op\": \"encode\", \"tokens\": [1], \"pos\": [0], \"seq\": [[0]], "
               "\"logits\": [1]}"),
           "op 0: encode: this model goes on from what it keeps");
}

/* A refused batch and a full cache are results, not failures. */
Test(replay, return_codes)
{
    char session[8192], *p = session;
    p += sprintf(p, "{\"ops\": [" DECODE("[48]", "[0]", "[[0]]", "[1]") ", ");
    p += sprintf(p, DECODE("[]", "[]", "[]", "[]") ", ");
    p = print_decode(p, 0, 200);
    p += sprintf(p, ", ");
    p = print_decode(p, 200, 57);
    p += sprintf(p, ", ");
    p = print_decode(p, 200, 56);
    sprintf(p, "]}");
    expect(0, session, "");
    cr_assert_eq(written_rc(0), -1, "no such token");
    cr_assert_eq(written_rc(1), -1, "no tokens");
    cr_assert_eq(written_rc(2), 0);
    cr_assert_eq(written_rc(3), 1, "257 tokens do not fit 256 cells");
    cr_assert_eq(written_rc(4), 0);
}

static void expect_failure(struct outcome o, int code, const char *says)
{
    cr_assert(o.exit_code == code && strstr(o.err, says), "exit code %d, %s expected, %d, %s found",
              code, says, o.exit_code, o.err);
}

Test(replay, files)
{
    const char *session = GOLDEN "/session.json";
    char out[256];
    snprintf(out, sizeof out, "%s", tiny_path("arrays"));
    expect_failure(GPURUN(NULL, "replay"), 2, "");
    expect_failure(GPURUN(NULL, "replay", session), 2,
                   "-o DIR, the folder for the arrays, or --hash is needed");
    expect_failure(GPURUN(NULL, "replay", tiny_path("none.json"), "-o", out), 6, "none.json");
    expect_failure(GPURUN(NULL, "replay", session, "-m", tiny_path("none.gguf"), "-o", out), 3,
                   "none.gguf");
    expect_failure(GPURUN(NULL, "replay", session, "-o", tiny_path("a/b")), 6,
                   "cannot make the folder");
    expect_failure(GPURUN(NULL, "replay", session, "-o", "/dev/null"), 6,
                   "'/dev/null' is no folder");
}

/* --dry-run prints sizes and writes nothing; flags go before what the session says. */
Test(replay, dry_run_and_cache_flags)
{
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_path("s.json"));
    FILE *f = fopen(path, "w");
    cr_assert(f &&
              fputs("{\"context\": {\"n_ctx\": 1024, \"n_seq_max\": 4}, \"ops\": [" GOOD "]}", f) >=
                  0 &&
              fclose(f) == 0);
    struct outcome o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "--dry-run");
    cr_expect(o.exit_code == 0 && strstr(o.out, "4 sequences, one pool of 1024 cells\n"), "%s",
              o.out);
    o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "--dry-run", "-no-kvu");
    cr_expect(o.exit_code == 0 && strstr(o.out, "4 sequences, 4 pools, each of 256 cells\n"), "%s",
              o.out);
    o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "-o", tiny_path("dumped"),
               "--dump-kv-cache");
    cr_expect(o.exit_code == 0 && strstr(o.err, "op 0:\n"), "%s", o.err);
    cr_expect_eq(access(tiny_path("dumped/logits_0.npy"), F_OK), 0);
}

/* Taps: one array a layer and micro-batch, as many rows as the micro-batch has tokens (the last
 * layer: as logits are wanted); an unknown name is an error, not silence. */
Test(replay, writes_intermediate_results)
{
    static const char session[] =
        "{\"context\": {\"n_ubatch\": 2, \"n_batch\": 8}, \"ops\": [{\"op\": \"decode\", "
        "\"tokens\": [1, 2, 3], "
        "\"pos\": [0, 1, 2], \"seq\": [[0], [0], [0]], \"logits\": [0, 0, 1]}]}";
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_path("s.json")); /* its buffers come round again */
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(session, f) >= 0 && fclose(f) == 0);
    struct outcome o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "-o",
                              tiny_path("taps"), "--tap", "layer");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    char name[512], *data;
    size_t n;
    snprintf(name, sizeof name, "%s/layer-0-0_0.npy", tiny_path("taps"));
    cr_assert_eq(gr_file_slurp(name, 1 << 20, &data, &n), 0, "%s", gr_error());
    cr_expect(strstr(data + 10, "'shape': (2, "), "%s", data + 10);
    gr_free(data);
    snprintf(name, sizeof name, "%s/layer-0-1_0.npy", tiny_path("taps"));
    cr_assert_eq(gr_file_slurp(name, 1 << 20, &data, &n), 0, "%s", gr_error());
    cr_expect(strstr(data + 10, "'shape': (1, "), "%s", data + 10);
    gr_free(data);
    o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "-o", tiny_path("taps"), "--tap",
               "nothing");
    cr_expect_eq(o.exit_code, 2);
    cr_expect(strstr(o.err, "'nothing'"), "%s", o.err);
}

static uint64_t fnv(uint64_t hash, const void *data, size_t n)
{
    for (const unsigned char *p = data, *end = p + n; p < end; p++)
        hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

/* The hash is that of the names, shapes and bytes of the arrays in order; no folder is needed. */
Test(replay, prints_a_hash_of_all_arrays)
{
    static const char session[] =
        "{\"ops\": [{\"op\": \"decode\", \"tokens\": [1, 2], \"pos\": [0, 1], "
        "\"seq\": [[0], [0]], \"logits\": [1, 0]}]}";
    char path[512], name[64], want[32], *data;
    size_t n;
    int rows, columns, ok = 0;
    snprintf(path, sizeof path, "%s", tiny_path("s.json"));
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(session, f) >= 0 && fclose(f) == 0);
    struct outcome o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "-o",
                              tiny_path("arrays"), "--hash");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    snprintf(name, sizeof name, "%s/logits_0.npy", tiny_path("arrays"));
    cr_assert_eq(gr_file_slurp(name, 1 << 20, &data, &n), 0, "%s", gr_error());
    cr_assert_eq(sscanf(strstr(data + 10, "'shape': ("), "'shape': (%d, %d", &rows, &columns), 2);
    size_t bytes = (size_t)rows * (size_t)columns * sizeof(float);
    uint64_t hash = fnv(fnv(0xcbf29ce484222325u, "rc_0 ()", 7), &ok, sizeof ok);
    hash = fnv(hash, name, (size_t)snprintf(name, sizeof name, "logits_0 (%d, %d)", rows, columns));
    snprintf(want, sizeof want, "%016llx\n",
             (unsigned long long)fnv(hash, data + n - bytes, bytes));
    gr_free(data);
    cr_expect_str_eq(o.out, want);
    o = GPURUN(NULL, "replay", path, "-m", GOLDEN "/tiny.gguf", "--hash");
    cr_expect_str_eq(o.out, want, "without a folder: %s", o.err);
}
