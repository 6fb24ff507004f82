/* Metadata that makes no sense: one line that names the key, status CORRUPT or UNSUPPORTED, no
 * crash. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "support/tiny.h"

static const struct {
    const char *key;
    enum { I, F, S } kind;
    double number;
    const char *text;
    int status;
} bad[] = {
    {"llama.block_count", I, 0, "", GR_E_CORRUPT},
    {"llama.block_count", I, 513, "", GR_E_CORRUPT},
    {"llama.block_count", I, 3, "", GR_E_CORRUPT}, /* the third layer's tensors are missing */
    {"llama.block_count", S, 0, "two", GR_E_CORRUPT},
    {"llama.embedding_length", I, 0, "", GR_E_CORRUPT},
    {"llama.embedding_length", I, 65, "", GR_E_CORRUPT},
    {"llama.embedding_length", I, 4294967295.0, "", GR_E_CORRUPT},
    {"llama.context_length", I, 0, "", GR_E_CORRUPT},
    {"llama.feed_forward_length", I, 4294967295.0, "", GR_E_CORRUPT},
    {"llama.attention.head_count", I, 0, "", GR_E_CORRUPT},
    {"llama.attention.head_count", I, 5, "", GR_E_CORRUPT},
    {"llama.attention.head_count_kv", I, 3, "", GR_E_CORRUPT},
    {"llama.attention.head_count_kv", I, 0, "", GR_E_CORRUPT},
    {"llama.attention.key_length", I, 0, "", GR_E_CORRUPT},
    {"llama.attention.key_length", I, 1 << 20, "", GR_E_CORRUPT},
    {"llama.attention.layer_norm_rms_epsilon", F, NAN, "", GR_E_CORRUPT},
    {"llama.attention.layer_norm_rms_epsilon", F, -1, "", GR_E_CORRUPT},
    {"llama.attention.layer_norm_rms_epsilon", S, 0, "small", GR_E_CORRUPT},
    {"llama.rope.dimension_count", I, 15, "", GR_E_CORRUPT},
    {"llama.rope.dimension_count", I, 18, "", GR_E_CORRUPT},
    {"llama.rope.dimension_count", I, 0, "", GR_E_CORRUPT},
    {"llama.rope.freq_base", F, 0, "", GR_E_CORRUPT},
    {"llama.rope.freq_base", F, INFINITY, "", GR_E_CORRUPT},
    {"llama.rope.scaling.type", S, 0, "cubic", GR_E_UNSUPPORTED},
    {"llama.rope.scaling.type", I, 1, "", GR_E_CORRUPT},
    {"llama.rope.scaling.factor", F, -2, "", GR_E_CORRUPT},
    {"llama.rope.scaling.factor", F, 1e-39, "", GR_E_CORRUPT},
    {"llama.rope.scaling.attn_factor", F, 0, "", GR_E_CORRUPT},
    {"llama.rope.scaling.yarn_attn_factor", F, -1, "", GR_E_CORRUPT},
    {"llama.rope.scaling.yarn_beta_fast", F, -1, "", GR_E_CORRUPT},
    {"llama.rope.scaling.yarn_beta_slow", F, 0, "", GR_E_CORRUPT},
    {"gemma3.rope.freq_base_swa", F, -10000, "", GR_E_CORRUPT},
    {"deepseek2.attention.key_length_mla", I, 0, "",
     GR_E_CORRUPT}, /* attn_kv_b: as many KV heads */
    {"deepseek2.attention.key_length_mla", I, 8, "", GR_E_CORRUPT},
    {"deepseek2.attention.kv_lora_rank", I, 17, "", GR_E_CORRUPT},
    {"deepseek2.attention.kv_lora_rank", I, 0, "", GR_E_CORRUPT},
    {"deepseek2.attention.temperature_scale", F, 0.1, "", GR_E_CORRUPT}, /* of no length */
    {"mistral3.attention.temperature_scale", F, NAN, "", GR_E_CORRUPT},
    {"minicpm3.attention.kv_lora_rank", I, 0, "", GR_E_CORRUPT},
    {"plm.attention.kv_lora_rank", I, 0, "", GR_E_CORRUPT},
    {"minicpm3.attention.head_count_kv", I, 1, "", GR_E_CORRUPT},
    {"grovemoe.experts_per_group", I, 0, "", GR_E_CORRUPT},
    {"grovemoe.experts_per_group", I, 2, "", GR_E_CORRUPT},
    {"laguna.rope.dimension_count_swa", I, 3, "", GR_E_CORRUPT},
    {"laguna.rope.dimension_count_swa", I, 18, "", GR_E_CORRUPT},
    {"step35.rope.dimension_count", I, 6, "", GR_E_UNSUPPORTED}, /* half of it is no pairs */
    {"step35.swiglu_clamp_exp", F, -1, "", GR_E_CORRUPT},
    {"xielu.beta", S, 0, "half", GR_E_CORRUPT},
    {"xielu.alpha_p", F, NAN, "", GR_E_CORRUPT},
    {"deepseek2.expert_group_count", I, 2, "", GR_E_CORRUPT},
    {"deepseek2.expert_gating_func", I, 4, "", GR_E_CORRUPT},
    {"deepseek2.expert_shared_count", I, 65, "", GR_E_CORRUPT},
    {"qwen2vl.rope.dimension_sections", I, 0, "", GR_E_CORRUPT},
    {"mamba.ssm.conv_kernel", I, 1, "", GR_E_CORRUPT},
    {"mamba.ssm.inner_size", I, 0, "", GR_E_CORRUPT},
    {"mamba.ssm.inner_size", I, 1 << 20, "", GR_E_CORRUPT},
    {"mamba.ssm.state_size", I, 4097, "", GR_E_CORRUPT},
    {"mamba.ssm.time_step_rank", I, 0, "", GR_E_CORRUPT},
    {"mamba2.ssm.time_step_rank", I, 5, "", GR_E_CORRUPT}, /* does not divide inner_size */
    {"mamba2.ssm.group_count", I, 3, "", GR_E_CORRUPT},
    {"mamba2.ssm.group_count", I, 4294967295.0, "", GR_E_CORRUPT},
    {"qwen35.ssm.state_size", I, 16, "", GR_E_CORRUPT}, /* not heads of V */
    {"qwen35.full_attention_interval", I, 0, "", GR_E_CORRUPT},
    {"qwen35.nextn_predict_layers", I, 2, "", GR_E_CORRUPT},
    {"qwen35.attention.value_length", I, 8, "", GR_E_CORRUPT},
    {"jamba.attention.head_count", I, 0, "", GR_E_CORRUPT},
    {"lfm2.shortconv.l_cache", I, 1, "", GR_E_CORRUPT},
    {"lfm2.attention.sliding_window", I, 4294967295.0, "", GR_E_CORRUPT},
    {"llama.expert_used_count", I, 4, "", GR_E_CORRUPT},
    {"llama.expert_used_count", I, 0, "", GR_E_CORRUPT},
    {"llama.expert_count", I, 1 << 20, "", GR_E_CORRUPT},
    {"llama.vocab_size", I, 95, "", GR_E_CORRUPT},
    {"llama.vocab_size", I, 97, "", GR_E_CORRUPT},
    {"t5.attention.relative_buckets_count", I, 3, "", GR_E_CORRUPT},
    {"t5.attention.relative_buckets_count", I, 12, "", GR_E_CORRUPT},
    {"t5.decoder_start_token_id", I, 1 << 20, "", GR_E_CORRUPT},
    {"t5.decoder_block_count", I, 100000, "", GR_E_CORRUPT},
    {"t5.decoder_block_count", I, 0, "", GR_E_CORRUPT},
    {"general.architecture", S, 0, "lama", GR_E_UNSUPPORTED},
    {"general.architecture", S, 0, "", GR_E_UNSUPPORTED},
    {"general.architecture", I, 7, "", GR_E_CORRUPT},
};

static int current;

/* The architecture that the key speaks of; one has keys without its name. */
static const struct gr_arch *arch_of(const char *key)
{
    if (strncmp(key, "xielu.", 6) == 0)
        key = "apertus";
    const struct gr_arch *a = gr_arch_find((struct gr_str){key, strcspn(key, ".")});
    return a ? a : gr_arch_at(0);
}

static void edit(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    const char *key = bad[current].key;
    int rc = bad[current].kind == I   ? gr_gguf_set_u32(w, key, (uint32_t)bad[current].number)
             : bad[current].kind == F ? gr_gguf_set_f32(w, key, (float)bad[current].number)
                                      : gr_gguf_set_str(w, key, bad[current].text);
    cr_assert_eq(rc, 0, "%s", gr_error());
}

Test(hostile, metadata_that_makes_no_sense)
{
    for (current = 0; current < (int)(sizeof bad / sizeof *bad); current++) {
        struct tiny t = tiny_default(arch_of(bad[current].key));
        struct gr_model *m;
        t.edit = edit;
        const char *path = tiny_write(&t, NULL);
        int rc = gr_model_open(&m, path, NULL);
        unlink(path);
        cr_expect_eq(rc, bad[current].status, "%s: status %d: %s", bad[current].key, rc,
                     gr_error());
        cr_expect_null(m);
        cr_expect_null(strchr(gr_error(), '\n'));
        cr_expect(strlen(gr_error()) > 20, "%s", gr_error());
        gr_model_close(&m);
    }
}

Test(hostile, the_nearest_architecture_is_offered)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m;
    t.edit = edit;
    while (strcmp(bad[current].text, "lama") != 0)
        current++;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, NULL), GR_E_UNSUPPORTED);
    unlink(path);
    cr_expect(strstr(gr_error(), "ones are llama"), "%s", gr_error());
}

/* Mapped or read: the same weights, bit for bit. */
Test(hostile, mapped_and_read_files_agree)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *a, *b;
    struct gr_model_params p = gr_model_params_default();
    t.dtype = "f16";
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&a, path, &p), 0, "%s", gr_error());
    p.use_mmap = false, p.check_tensors = true;
    cr_assert_eq(gr_model_open(&b, path, &p), 0, "%s", gr_error());
    unlink(path);
    for (int i = 0; i < 3 * GR_N_SLOT; i++) {
        struct gr_ten *x = &a->weight[i], *y = &b->weight[i];
        cr_assert_eq(x->rows, y->rows);
        if (gr_ten_is(x))
            cr_assert_eq(memcmp(x->data, y->data, (size_t)(x->batch * x->rows * x->row_bytes)), 0);
    }
    gr_model_close(&a);
    gr_model_close(&b);
}

/* --check-tensors finds a number that is not finite and says where it is. */
Test(hostile, weights_that_are_not_finite_are_found_on_request)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m;
    struct gr_model_params p = gr_model_params_default();
    const char *path = tiny_write(&t, NULL);
    struct gr_gguf *g;
    cr_assert_eq(gr_gguf_open(&g, path, true), 0);
    const struct gr_gguf_tensor *w = gr_gguf_find_tensor(g, "blk.1.attn_q.weight");
    FILE *f = fopen(path, "r+b");
    float nan = NAN;
    cr_assert(f && fseek(f, (long)(w->offset + 40 * 4), SEEK_SET) == 0 &&
              fwrite(&nan, 4, 1, f) == 1);
    fclose(f);
    gr_gguf_close(&g);
    cr_expect_eq(gr_model_open(&m, path, &p), 0);
    gr_model_close(&m);
    p.check_tensors = true;
    cr_expect_eq(gr_model_open(&m, path, &p), GR_E_CHECK);
    cr_expect(strstr(gr_error(), "blk.1.attn_q.weight") && strstr(gr_error(), "element 40"), "%s",
              gr_error());
    unlink(path);
}

enum { TOKENS = 1000000, MERGES = 8300000 };

/* Each limit of a vocabulary is kept, but not all of them together. */
static void great_vocabulary(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    struct gr_str *s = gr_calloc(MERGES, sizeof *s);
    char(*text)[8] = gr_calloc(TOKENS, sizeof *text);
    cr_assert(s && text);
    for (int i = 0; i < TOKENS; i++)
        s[i] = (struct gr_str){text[i], (size_t)snprintf(text[i], sizeof text[i], "%d", i)};
    cr_assert_eq(gr_gguf_set_strs(w, "tokenizer.ggml.tokens", s, TOKENS), 0);
    for (int i = 0; i < MERGES; i++)
        s[i] = (struct gr_str){"1 2", 3};
    cr_assert_eq(gr_gguf_set_strs(w, "tokenizer.ggml.merges", s, MERGES), 0);
    cr_assert_eq(gr_gguf_set_str(w, "tokenizer.ggml.model", "gpt2"), 0);
    gr_free(s);
    gr_free(text);
}

/* It is refused for its metadata with what is made of that, and takes no more memory until then. */
Test(hostile, metadata_that_takes_too_much)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    size_t peak, before;
    t.edit = great_vocabulary;
    const char *path = tiny_write(&t, NULL);
    before = gr_alloc_held(&peak);
    p.vocab_only = true;
    int rc = gr_model_open(&m, path, &p);
    (void)gr_alloc_held(&peak);
    unlink(path);
    cr_assert(rc == GR_E_CORRUPT && !m, "%d %s", rc, gr_error());
    cr_assert(strstr(gr_error(), "its metadata and what is made of it take more than 512 MiB"),
              "%s", gr_error());
    cr_assert_leq(peak - before, (size_t)512 << 20);
    cr_assert_eq(gr_alloc_held(NULL), before);
}

/* Every allocation fails once: an error, nothing lost, and what is open works on the second try. */
Test(hostile, no_memory_at_any_point)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    const char *path = tiny_write(&t, NULL);
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1;
    int32_t id[3] = {1, 2, 3};
    struct gr_batch batch = {.n_tok = 3, .token = id};
    uint64_t held = gr_alloc_held(NULL);
    for (uint64_t k = 1, done = 0; !done; k++) {
        struct gr_model *m = NULL;
        struct gr_session *s = NULL;
        gr_alloc_fail_at(k, 0);
        int rc = gr_model_open(&m, path, NULL);
        if (!rc)
            rc = gr_session_open(&s, m, &p);
        if (!rc)
            rc = gr_decode(s, &batch);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %llu: %d %s",
                     (unsigned long long)k, rc, gr_error());
        if (rc && s)
            cr_expect_eq(gr_decode(s, &batch), 0, "the second try: %s", gr_error());
        gr_session_close(&s);
        gr_model_close(&m);
        cr_expect_eq(gr_alloc_held(NULL), held, "allocation %llu leaves something behind",
                     (unsigned long long)k);
    }
    unlink(path);
}

/* The file shrinks between its header and its weights: that is what is said, with its own status.
 */
Test(hostile, weights_that_cannot_be_read)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.use_mmap = false;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    struct gr_model again = {.arch = m->arch, .hp = m->hp};
    cr_assert_eq(gr_gguf_open(&again.gguf, path, false), 0);
    cr_assert_eq(truncate(path, (off_t)gr_gguf_tensor_at(again.gguf, 3)->offset + 5), 0);
    cr_expect_eq(gr_model_bind(&again, false), GR_E_IO);
    cr_expect(strstr(gr_error(), "ends before"), "%s", gr_error());
    unlink(path);
    for (size_t i = 0; i < again.owned.n; i++)
        gr_free(((void **)again.owned.data)[i]);
    gr_vec_fini(&again.owned);
    gr_free(again.weight);
    gr_free(again.bias);
    gr_free(again.scale);
    gr_gguf_close(&again.gguf);
    gr_model_close(&m);
}

static void name_with_controls(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    cr_assert_eq(gr_gguf_set_str(w, "general.name",
                                 "a\nb\x1b]0;c\x07\x7f\xc2\x9b"
                                 "d \xc3\xa9"),
                 0);
}

/* A name is printed by everybody: nothing in it can end a line or steer a terminal. */
/* ".scale" beside a matrix: one number, or one for each expert. */
Test(hostile, factors_of_another_shape)
{
    static const char *const arch[] = {"llama", "qwen3moe"};
    int n_found = 0;
    for (int a = 0; a < 2; a++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[a], strlen(arch[a])}));
        t.scaled = t.no_optional = true;
        t.n_layer = 1;
        for (int i = 0; i < tiny_n_tensor(&t); i++) {
            char broken[96];
            struct gr_model *m;
            t.reshape = i;
            const char *path = tiny_write(&t, broken);
            int rc = gr_model_open(&m, path, NULL);
            unlink(path);
            if (!strstr(broken, ".scale"))
                continue;
            cr_expect_eq(rc, GR_E_CORRUPT, "%s: %d", broken, rc);
            cr_expect(strstr(gr_error(), broken), "%s: %s", broken, gr_error());
            n_found++;
        }
    }
    cr_expect_eq(n_found, 7 + 7, "%d", n_found);
}

Test(hostile, the_name_has_no_control_characters)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model_info info;
    t.edit = name_with_controls;
    struct gr_model *m = tiny_open(&t);
    gr_model_info(m, &info);
    cr_expect_str_eq(info.name, "a?b?]0;c????d \xc3\xa9");
    gr_model_close(&m);
}
