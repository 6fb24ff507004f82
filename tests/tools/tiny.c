#include "tiny.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "support/tiny.h"

extern char **environ;

/* ---- files ---- */

static char folder[64];

static void remove_folder(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", folder);
}

const char *tiny_dir(void)
{
    if (!*folder) {
        snprintf(folder, sizeof folder, "/tmp/gpurun-tools-XXXXXX");
        cr_assert(mkdtemp(folder));
        atexit(remove_folder);
    }
    return folder;
}

const char *tiny_path(const char *name)
{
    static char ring[8][128];
    static int turn;
    char *path = ring[turn++ % 8];
    snprintf(path, 128, "%s/%s", tiny_dir(), name);
    return path;
}

/* ---- the model ---- */

enum { N_VOCAB = 3 + 256 + 26, N_EMBD = 32, N_HEAD = 4, N_FF = 64, N_LAYER = 2, N_BUCKET = 8 };

#define OK(call) cr_assert_eq((call), 0, "%s", gr_error_message())

static void set_vocabulary(struct gr_gguf_writer *w)
{
    static char text[N_VOCAB][8];
    struct gr_str token[N_VOCAB];
    float score[N_VOCAB];
    int32_t type[N_VOCAB];
    for (int i = 0; i < N_VOCAB; i++) {
        static const char *const special[] = {"<unk>", "<s>", "</s>"};
        if (i < 3)
            snprintf(text[i], 8, "%s", special[i]);
        else
            snprintf(text[i], 8, i < 259 ? "<0x%02X>" : "%c", i < 259 ? i - 3 : 'a' + i - 259);
        token[i] = (struct gr_str){text[i], strlen(text[i])};
        type[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        score[i] = i < 259 ? 0 : (float)-i;
    }
    OK(gr_gguf_set_str(w, "tokenizer.ggml.model", "llama"));
    OK(gr_gguf_set_strs(w, "tokenizer.ggml.tokens", token, N_VOCAB));
    OK(gr_gguf_set_array(w, "tokenizer.ggml.scores", GR_GGUF_F32, score, N_VOCAB));
    OK(gr_gguf_set_array(w, "tokenizer.ggml.token_type", GR_GGUF_I32, type, N_VOCAB));
    OK(gr_gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", false));
    OK(gr_gguf_set_u32(w, "tokenizer.ggml.unknown_token_id", 0));
    OK(gr_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 1));
    OK(gr_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", TINY_EOS));
}

static void set_u32(struct gr_gguf_writer *w, const char *arch, const char *key, uint32_t value)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    OK(gr_gguf_set_u32(w, name, value));
}

static void set_f32(struct gr_gguf_writer *w, const char *arch, const char *key, float value)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    OK(gr_gguf_set_f32(w, name, value));
}

static void set_parameters(struct gr_gguf_writer *w, const char *arch)
{
    OK(gr_gguf_set_str(w, "general.architecture", arch));
    OK(gr_gguf_set_str(w, "general.name", "tiny"));
    set_u32(w, arch, "context_length", TINY_N_CTX);
    set_u32(w, arch, "embedding_length", N_EMBD);
    set_u32(w, arch, "block_count", N_LAYER);
    set_u32(w, arch, "feed_forward_length", N_FF);
    set_u32(w, arch, "attention.head_count", N_HEAD);
    set_u32(w, arch, "attention.head_count_kv", N_HEAD / 2);
    set_f32(w, arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    set_f32(w, arch, "attention.layer_norm_epsilon", 1e-5f);
    set_u32(w, arch, "rope.dimension_count", N_EMBD / N_HEAD);
    set_u32(w, arch, "attention.relative_buckets_count", N_BUCKET);
    set_u32(w, arch, "decoder_start_token_id", TINY_START);
}

/* A tensor, of each layer of a block or (NULL) once; what has one dimension is all 1. */
struct tensor {
    const char *name, *block;
    uint64_t ne[2];
};

#define END                                                                                        \
    {                                                                                              \
        NULL, NULL,                                                                                \
        {                                                                                          \
            0, 0                                                                                   \
        }                                                                                          \
    }

static const struct tensor llama[] = {{"token_embd.weight", NULL, {N_EMBD, N_VOCAB}},
                                      {"output_norm.weight", NULL, {N_EMBD, 0}},
                                      {"output.weight", NULL, {N_EMBD, N_VOCAB}},
                                      {"attn_norm.weight", "blk", {N_EMBD, 0}},
                                      {"attn_q.weight", "blk", {N_EMBD, N_EMBD}},
                                      {"attn_k.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                      {"attn_v.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                      {"attn_output.weight", "blk", {N_EMBD, N_EMBD}},
                                      {"ffn_norm.weight", "blk", {N_EMBD, 0}},
                                      {"ffn_gate.weight", "blk", {N_EMBD, N_FF}},
                                      {"ffn_up.weight", "blk", {N_EMBD, N_FF}},
                                      {"ffn_down.weight", "blk", {N_FF, N_EMBD}},
                                      END};
static const struct tensor bert[] = {{"token_embd.weight", NULL, {N_EMBD, N_VOCAB}},
                                     {"position_embd.weight", NULL, {N_EMBD, TINY_N_CTX}},
                                     {"token_embd_norm.weight", NULL, {N_EMBD, 0}},
                                     {"token_embd_norm.bias", NULL, {N_EMBD, 0}},
                                     {"cls.output.weight", NULL, {N_EMBD, 2}},
                                     {"attn_q.weight", "blk", {N_EMBD, N_EMBD}},
                                     {"attn_k.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                     {"attn_v.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                     {"attn_output.weight", "blk", {N_EMBD, N_EMBD}},
                                     {"attn_output_norm.weight", "blk", {N_EMBD, 0}},
                                     {"attn_output_norm.bias", "blk", {N_EMBD, 0}},
                                     {"ffn_up.weight", "blk", {N_EMBD, N_FF}},
                                     {"ffn_down.weight", "blk", {N_FF, N_EMBD}},
                                     {"layer_output_norm.weight", "blk", {N_EMBD, 0}},
                                     {"layer_output_norm.bias", "blk", {N_EMBD, 0}},
                                     END};

static const struct tensor t5[] = {{"token_embd.weight", NULL, {N_EMBD, N_VOCAB}},
                                   {"enc.output_norm.weight", NULL, {N_EMBD, 0}},
                                   {"dec.output_norm.weight", NULL, {N_EMBD, 0}},
                                   {"output.weight", NULL, {N_EMBD, N_VOCAB}},
                                   {"attn_rel_b.weight", "enc.blk", {N_HEAD, N_BUCKET}},
                                   {"attn_rel_b.weight", "dec.blk", {N_HEAD, N_BUCKET}},
                                   {"attn_norm.weight", "enc.blk", {N_EMBD, 0}},
                                   {"attn_q.weight", "enc.blk", {N_EMBD, N_EMBD}},
                                   {"attn_k.weight", "enc.blk", {N_EMBD, N_EMBD / 2}},
                                   {"attn_v.weight", "enc.blk", {N_EMBD, N_EMBD / 2}},
                                   {"attn_o.weight", "enc.blk", {N_EMBD, N_EMBD}},
                                   {"ffn_norm.weight", "enc.blk", {N_EMBD, 0}},
                                   {"ffn_gate.weight", "enc.blk", {N_EMBD, N_FF}},
                                   {"ffn_up.weight", "enc.blk", {N_EMBD, N_FF}},
                                   {"ffn_down.weight", "enc.blk", {N_FF, N_EMBD}},
                                   {"attn_norm.weight", "dec.blk", {N_EMBD, 0}},
                                   {"attn_q.weight", "dec.blk", {N_EMBD, N_EMBD}},
                                   {"attn_k.weight", "dec.blk", {N_EMBD, N_EMBD / 2}},
                                   {"attn_v.weight", "dec.blk", {N_EMBD, N_EMBD / 2}},
                                   {"attn_o.weight", "dec.blk", {N_EMBD, N_EMBD}},
                                   {"cross_attn_norm.weight", "dec.blk", {N_EMBD, 0}},
                                   {"cross_attn_q.weight", "dec.blk", {N_EMBD, N_EMBD}},
                                   {"cross_attn_k.weight", "dec.blk", {N_EMBD, N_EMBD / 2}},
                                   {"cross_attn_v.weight", "dec.blk", {N_EMBD, N_EMBD / 2}},
                                   {"cross_attn_o.weight", "dec.blk", {N_EMBD, N_EMBD}},
                                   {"ffn_norm.weight", "dec.blk", {N_EMBD, 0}},
                                   {"ffn_gate.weight", "dec.blk", {N_EMBD, N_FF}},
                                   {"ffn_up.weight", "dec.blk", {N_EMBD, N_FF}},
                                   {"ffn_down.weight", "dec.blk", {N_FF, N_EMBD}},
                                   END};

static const struct tensor gpt2[] = {{"token_embd.weight", NULL, {N_EMBD, N_VOCAB}},
                                     {"position_embd.weight", NULL, {N_EMBD, TINY_N_CTX}},
                                     {"output_norm.weight", NULL, {N_EMBD, 0}},
                                     {"output_norm.bias", NULL, {N_EMBD, 0}},
                                     {"attn_norm.weight", "blk", {N_EMBD, 0}},
                                     {"attn_norm.bias", "blk", {N_EMBD, 0}},
                                     {"attn_q.weight", "blk", {N_EMBD, N_EMBD}},
                                     {"attn_k.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                     {"attn_v.weight", "blk", {N_EMBD, N_EMBD / 2}},
                                     {"attn_output.weight", "blk", {N_EMBD, N_EMBD}},
                                     {"attn_output.bias", "blk", {N_EMBD, 0}},
                                     {"ffn_norm.weight", "blk", {N_EMBD, 0}},
                                     {"ffn_norm.bias", "blk", {N_EMBD, 0}},
                                     {"ffn_up.weight", "blk", {N_EMBD, N_FF}},
                                     {"ffn_up.bias", "blk", {N_FF, 0}},
                                     {"ffn_down.weight", "blk", {N_FF, N_EMBD}},
                                     {"ffn_down.bias", "blk", {N_EMBD, 0}},
                                     END};

static uint32_t n_dim(const struct tensor *t)
{
    return t->ne[1] ? 2 : 1;
}

static void add_tensor(struct gr_gguf_writer *w, const struct tensor *t, int il)
{
    char name[64];
    if (t->block)
        snprintf(name, sizeof name, "%s.%d.%s", t->block, il, t->name);
    else
        snprintf(name, sizeof name, "%s", t->name);
    OK(gr_gguf_add_tensor(w, (struct gr_str){name, strlen(name)}, GR_F32, n_dim(t), t->ne));
}

static void write_tensor(struct gr_gguf_writer *w, const struct tensor *t, struct gr_rng *rng,
                         bool nan)
{
    static float x[N_EMBD * TINY_N_CTX];
    size_t n = t->ne[0] * (t->ne[1] ? t->ne[1] : 1);
    for (size_t i = 0; i < n; i++)
        x[i] = t->ne[1] ? gr_rng_normal(rng) * 0.5f : 1;
    if (nan)
        x[0] = NAN;
    OK(gr_gguf_write(w, x, n * sizeof *x));
}

struct kind {
    const char *arch, *file;
    const struct tensor *tensor;
    bool broken, textless;
    void (*edit)(struct gr_gguf_writer *w); /* NULL = none */
};

static const char *write_model(const struct kind *k)
{
    struct gr_gguf_writer *w;
    struct gr_rng rng = gr_rng_new(11);
    static char path[128];
    snprintf(path, sizeof path, "%s", tiny_path(k->file));
    OK(gr_gguf_writer_new(&w));
    set_parameters(w, k->arch);
    if (k->textless) {
        OK(gr_gguf_set_str(w, "tokenizer.ggml.model", "none"));
        set_u32(w, k->arch, "vocab_size", N_VOCAB);
    } else {
        set_vocabulary(w);
    }
    if (k->edit)
        k->edit(w);
    for (const struct tensor *t = k->tensor; t->name; t++)
        for (int il = 0; il < (t->block ? N_LAYER : 1); il++)
            add_tensor(w, t, il);
    OK(gr_gguf_begin(w, path));
    for (const struct tensor *t = k->tensor; t->name; t++)
        for (int il = 0; il < (t->block ? N_LAYER : 1); il++)
            write_tensor(w, t, &rng, k->broken && t == k->tensor + 1);
    OK(gr_gguf_commit(w));
    gr_gguf_writer_free(&w);
    return path;
}

static void set_text(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    set_vocabulary(w);
}

void tiny_write_arch(const char *arch, const char *path)
{
    char dir[512];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    t.n_head = 2, t.n_head_kv = t.n_head_kv > 2 ? 2 : 1, t.d_head = 32;
    t.n_vocab = N_VOCAB, t.n_ctx = TINY_N_CTX, t.n_swa = 200;
    t.dir = dir, t.edit = set_text;
    cr_assert_eq(rename(tiny_write(&t, NULL), path), 0);
}

const char *tiny_model(bool broken)
{
    return write_model(
        &(struct kind){"llama", broken ? "broken.gguf" : "tiny.gguf", llama, broken, false, NULL});
}

static void leave_out_bos(struct gr_gguf_writer *w)
{
    OK(gr_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", false));
}

const char *tiny_model_without_bos(void)
{
    return write_model(&(struct kind){"llama", "bare.gguf", llama, false, false, leave_out_bos});
}

const char *tiny_diffusion_model(void)
{
    return write_model(&(struct kind){"llada", "diffusion.gguf", llama, false, false, NULL});
}

const char *tiny_encoder_decoder(void)
{
    return write_model(&(struct kind){"t5", "encoder-decoder.gguf", t5, false, false, NULL});
}

const char *tiny_textless_model(void)
{
    return write_model(&(struct kind){"llama", "textless.gguf", llama, false, true, NULL});
}

const char *tiny_learned_model(void)
{
    return write_model(&(struct kind){"gpt2", "learned.gguf", gpt2, false, false, NULL});
}

const char *tiny_edited_model(const char *file, void (*edit)(struct gr_gguf_writer *w))
{
    return write_model(&(struct kind){"llama", file, llama, false, false, edit});
}

static void set_encoder(struct gr_gguf_writer *w)
{
    static const struct gr_str label[] = {{"no", 2}, {"yes", 3}};
    OK(gr_gguf_set_u32(w, "bert.pooling_type", 1));
    OK(gr_gguf_set_u32(w, "tokenizer.ggml.token_type_count", 1));
    OK(gr_gguf_set_strs(w, "bert.classifier.output_labels", label, 2));
}

const char *tiny_encoder(void)
{
    return write_model(&(struct kind){"bert", "encoder.gguf", bert, false, false, set_encoder});
}

const char *tiny_adapter(void)
{
    const char *path = tiny_path("adapter.gguf");
    float a[N_EMBD], b[N_VOCAB] = {0};
    struct gr_gguf_writer *w;
    for (int i = 0; i < N_EMBD; i++)
        a[i] = i % 2 ? 1 : -0.5f;
    b[N_VOCAB - 1] = 1e4f, b[N_VOCAB - 2] = -1e4f;
    OK(gr_gguf_writer_new(&w));
    OK(gr_gguf_set_str(w, "general.type", "adapter"));
    OK(gr_gguf_set_str(w, "general.architecture", "llama"));
    OK(gr_gguf_set_str(w, "adapter.type", "lora"));
    OK(gr_gguf_add_tensor(w, (struct gr_str){"output.weight.lora_a", 20}, GR_F32, 2,
                          (uint64_t[]){N_EMBD, 1}));
    OK(gr_gguf_add_tensor(w, (struct gr_str){"output.weight.lora_b", 20}, GR_F32, 2,
                          (uint64_t[]){1, N_VOCAB}));
    OK(gr_gguf_begin(w, path));
    OK(gr_gguf_write(w, a, sizeof a));
    OK(gr_gguf_write(w, b, sizeof b));
    OK(gr_gguf_commit(w));
    gr_gguf_writer_free(&w);
    return path;
}

/* ---- runs ---- */

/* Starts the program on these descriptors and files; what is -1 goes to a file. */
static int start(const char *const *argv, int out, int err, const char *in_file)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, in_file, O_RDONLY, 0);
    if (out >= 0)
        posix_spawn_file_actions_adddup2(&actions, out, 1);
    else
        posix_spawn_file_actions_addopen(&actions, 1, tiny_path("out"),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (err >= 0)
        posix_spawn_file_actions_adddup2(&actions, err, 2);
    else
        posix_spawn_file_actions_addopen(&actions, 2, tiny_path("err"),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int rc =
        posix_spawn(&pid, GR_BINARY_DIR "/gpurun", &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    cr_assert_eq(rc, 0, "cannot start " GR_BINARY_DIR "/gpurun: %s", strerror(rc));
    return pid;
}

/* Texts that were read are kept until the end, so that no test need free them. */
static struct kept {
    struct kept *next;
    char data[];
} * kept;

static char *slurp(const char *path, size_t *n)
{
    struct stat st = {0};
    FILE *f = fopen(path, "rb");
    if (f)
        cr_assert_eq(fstat(fileno(f), &st), 0);
    struct kept *k = calloc(1, sizeof *k + (size_t)st.st_size + 1);
    cr_assert(k);
    k->next = kept;
    kept = k;
    *n = f ? fread(k->data, 1, (size_t)st.st_size, f) : 0;
    if (f)
        fclose(f);
    return k->data;
}

struct outcome tiny_wait(int pid)
{
    struct outcome o = {.exit_code = -1};
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        o.exit_code = WEXITSTATUS(status);
    else
        o.signal = WTERMSIG(status);
    o.out = slurp(tiny_path("out"), &o.n_out);
    o.err = slurp(tiny_path("err"), &o.n_err);
    for (const char *p = o.err; *p; p++)
        o.err_lines += *p == '\n';
    return o;
}

struct outcome tiny_run(const char *input, const char *const *argv)
{
    if (input) {
        FILE *f = fopen(tiny_path("in"), "wb");
        cr_assert(f);
        fputs(input, f);
        fclose(f);
    }
    return tiny_wait(start(argv, -1, -1, input ? tiny_path("in") : "/dev/null"));
}

void expect_exit(struct outcome o, int code, const char *words)
{
    cr_expect_eq(o.exit_code, code, "exit %d (signal %d), %d expected: %s", o.exit_code, o.signal,
                 code, o.err);
    cr_expect(strstr(o.err, words), "'%s' expected, found: %s", words, o.err);
}

int tiny_start(const char *const *argv, int out, bool both)
{
    remove(tiny_path("out"));
    remove(tiny_path("err"));
    return start(argv, out, both ? out : -1, "/dev/null");
}

int tiny_start_pipe(const char *const *argv, int *out)
{
    int ends[2];
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    int pid = tiny_start(argv, ends[1], false);
    close(ends[1]);
    *out = ends[0];
    return pid;
}
