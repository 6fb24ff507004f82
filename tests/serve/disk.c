/* Prefixes on disk: what comes back is what was saved, to the bit, or nothing. */
#include "tools/serve/disk.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(disk, .timeout = 120);

static const uint64_t PLENTY = UINT64_C(1) << 40;
static struct client client[MOST_REQUEST];

/* The i-th file of the folder (one of a few buffers), NULL: there are fewer. */
static const char *file_at(const char *dir, int i)
{
    static char path[512];
    DIR *d = opendir(dir);
    cr_assert(d);
    struct dirent *e;
    while ((e = readdir(d)) && (e->d_name[0] == '.' || i-- > 0))
        ;
    if (e)
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    closedir(d);
    return e ? path : NULL;
}

static int n_files(const char *dir)
{
    int n = 0;
    while (file_at(dir, n))
        n++;
    return n;
}

static struct gr_disk *open_disk(const struct world *w, struct gr_session *s, const char *dir,
                                 uint64_t bytes)
{
    struct gr_disk *disk;
    gr_kv_clear(s);
    cr_assert_eq(gr_disk_open(&disk, dir, bytes, s, w->p.whole, NULL, NULL), 0, "%s",
                 gr_error_message());
    return disk;
}

/* Reads a file and restores it. */
static int load(struct gr_disk *disk, int32_t file, int32_t seq)
{
    bool soon;
    struct gr_disk_job *job = gr_disk_read(disk, file, &soon);
    cr_assert(job);
    cr_expect(!gr_disk_is_read(job));
    gr_disk_wait(disk);
    cr_assert(gr_disk_is_read(job));
    return gr_disk_load(disk, &job, seq);
}

static void decode(struct gr_session *s, const int32_t *token, int32_t n)
{
    struct gr_batch batch = {.n_tok = n, .token = token};
    cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
}

/* Saves the first n tokens of a client's prompt; returns the logits of a session that goes on with
 * the next token (free). */
static float *save_text(const struct world *w, struct gr_disk *disk, struct gr_session *s,
                        const struct client *c, int32_t n)
{
    float *logits = malloc((size_t)w->n_vocab * sizeof *logits);
    gr_kv_clear(s);
    decode(s, c->prompt, n);
    gr_disk_save(disk, 0, 3, c->prompt, n);
    decode(s, c->prompt + n, 1);
    memcpy(logits, gr_logits(s, -1), (size_t)w->n_vocab * sizeof *logits);
    return logits;
}

static const char *const archs[] = {"llama", "gemma3", "mamba", "jamba"};

/* A disk that is opened again, by another session with another number of cells. */
Test(disk, logits_are_the_same)
{
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf"), *dir = tiny_path(archs[a]);
        tiny_write_arch(archs[a], path);
        struct world w = load_world(path, 2, 512);
        struct gr_rng rng = gr_rng_new(30);
        struct client *c = &client[0];
        struct gr_session *s = open_session(&w, 512, 1), *other = open_session(&w, 1024, 3);
        struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
        int32_t file = 0;
        make_client(&w, c, &rng, 260);
        float *logits = save_text(&w, disk, s, c, 250);
        gr_kv_clear(s);
        cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 255, &file), 250); /* while it is written */
        gr_disk_wait(disk);
        cr_assert_eq(gr_disk_find(disk, 3, c->prompt, 255, &file), 250);
        cr_expect_eq(load(disk, file, 0), 0);
        decode(s, c->prompt + 250, 1);
        cr_expect(!memcmp(gr_logits(s, -1), logits, (size_t)w.n_vocab * sizeof *logits));
        gr_disk_close(&disk);
        disk = open_disk(&w, other, dir, PLENTY);
        cr_expect_eq(gr_disk_find(disk, 4, c->prompt, 255, &file), 0); /* of another owner */
        cr_expect_eq(file, -1);
        cr_assert_eq(gr_disk_find(disk, 3, c->prompt, 255, &file), 250);
        cr_expect_eq(gr_disk_length(disk, file), 250);
        cr_assert_eq(load(disk, file, 2), 0, "%s", gr_error_message());
        int32_t seq = 2;
        struct gr_batch batch = {.n_tok = 1, .token = c->prompt + 250, .seq = &seq};
        cr_assert_eq(gr_decode(other, &batch), 0);
        cr_expect(!memcmp(gr_logits(other, -1), logits, (size_t)w.n_vocab * sizeof *logits), "%s",
                  archs[a]);
        cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 100, &file), w.p.whole ? 0 : 100);
        free(logits);
        gr_disk_close(&disk);
        gr_session_close(&s);
        gr_session_close(&other);
        close_world(&w);
    }
}

/* A file is found for a beginning of its text where its state can be cut there, and not elsewhere.
 */
Test(disk, files_are_found_where_they_can_be_cut)
{
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf"), *dir = tiny_path(archs[a]);
        tiny_write_arch(archs[a], path);
        struct world w = load_world(path, 1, 512);
        struct gr_rng rng = gr_rng_new(38);
        struct gr_session *s = open_session(&w, 512, 1);
        struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
        struct client *c = &client[0];
        int32_t file, n_cut = 0;
        make_client(&w, c, &rng, 250);
        for (int32_t i = 0; i < 250; i += 25)
            decode(s, c->prompt + i, 25);
        gr_disk_save(disk, 0, 3, c->prompt, 250);
        gr_disk_wait(disk);
        for (int32_t n = 1; n < 250; n += n < 200 ? 7 : 1) {
            gr_kv_clear(s);
            cr_assert_eq(gr_disk_find(disk, 3, c->prompt, 250, &file), 250);
            cr_assert_eq(load(disk, file, 0), 0);
            int32_t min = gr_kv_seq_cut_min(s, 0);
            bool cuts = !gr_kv_seq_rm(s, 0, n, -1);
            cr_expect_eq(min <= n, cuts, "%s: %d of 250, from %d on", archs[a], n, min);
            cr_expect_eq(gr_disk_find(disk, 3, c->prompt, n, &file), cuts ? n : 0, "%s: %d",
                         archs[a], n);
            n_cut += cuts;
        }
        cr_expect_eq(n_cut > 0, a < 2, "%s", archs[a]);
        gr_disk_close(&disk);
        gr_session_close(&s);
        close_world(&w);
    }
}

/* Two programs at one folder: each finds the other's files, and all count. */
Test(disk, two_at_one_folder)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(39);
    const char *dir = tiny_path("cache");
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY), *other;
    int32_t file;
    for (int i = 0; i < 5; i++)
        make_client(&w, &client[i], &rng, 60);
    free(save_text(&w, disk, s, &client[0], 50));
    gr_disk_wait(disk);
    uint64_t bytes = gr_disk_stats(disk).bytes;
    other = open_disk(&w, s, dir, 3 * bytes);
    cr_expect_eq(gr_disk_find(other, 3, client[0].prompt, 50, &file), 50);
    for (int i = 1; i < 5; i++)
        free(save_text(&w, i < 3 ? disk : other, s, &client[i], 50));
    gr_disk_wait(disk);
    gr_disk_wait(other);
    cr_expect_eq(n_files(dir), 5);
    usleep(3100000);
    for (int i = 0; i < 2; i++) { /* the first one is told what the second one removes then */
        gr_disk_poll(other);
        gr_disk_wait(other);
    }
    cr_expect_leq(gr_disk_stats(other).bytes, 3 * bytes);
    cr_expect_eq(n_files(dir), 3);
    gr_disk_poll(disk);
    gr_disk_wait(disk);
    cr_expect_eq(gr_disk_stats(disk).n_file, 3);
    cr_expect_eq(gr_disk_stats(disk).bytes, gr_disk_stats(other).bytes);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(gr_disk_find(disk, 3, client[i].prompt, 50, &file), i < 2 ? 0 : 50, "%d", i);
    gr_kv_clear(s);
    cr_assert_eq(gr_disk_find(disk, 3, client[4].prompt, 50, &file), 50);
    cr_expect_eq(load(disk, file, 0), 0);
    cr_expect_eq(gr_disk_stats(disk).n_damaged + gr_disk_stats(other).n_damaged, 0);
    gr_disk_close(&disk);
    gr_disk_close(&other);
    gr_session_close(&s);
    close_world(&w);
}

/* A temporary file stays while its writer has it locked. */
Test(disk, files_that_are_written_stay)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    const char *dir = tiny_path("cache");
    char name[600];
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
    gr_disk_close(&disk);
    snprintf(name, sizeof name, "%s/%064d.prefix.tmp-0123abcd", dir, 0);
    int fd = open(name, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    disk = open_disk(&w, s, dir, PLENTY);
    gr_disk_close(&disk);
    cr_expect_eq(n_files(dir), 1);
    close(fd);
    disk = open_disk(&w, s, dir, PLENTY);
    gr_disk_close(&disk);
    cr_expect_eq(n_files(dir), 0);
    gr_session_close(&s);
    close_world(&w);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    return st.st_mode & 07777;
}

/* Folder and files are this user's alone; those of others, or that others may write to, are not
 * used, but for root's folders. */
Test(disk, only_this_user)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(44);
    const char *dir = tiny_path("cache");
    struct gr_session *s = open_session(&w, 512, 1);
    int32_t file;
    umask(0);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY), *refused;
    make_client(&w, &client[0], &rng, 60);
    free(save_text(&w, disk, s, &client[0], 50));
    gr_disk_close(&disk);
    cr_expect_eq(mode_of(dir), 0700);
    cr_expect_eq(mode_of(file_at(dir, 0)), 0600);
    cr_assert_eq(chmod(file_at(dir, 0), 0620), 0);
    if (geteuid() == 0)
        cr_assert_eq(chown(file_at(dir, 0), 12345, 12345), 0);
    disk = open_disk(&w, s, dir, PLENTY);
    cr_expect_eq(gr_disk_find(disk, 3, client[0].prompt, 50, &file), 0);
    gr_disk_close(&disk);
    cr_expect_eq(n_files(dir), 1);
    if (geteuid() != 0) {
        cr_assert_eq(chmod(dir, 0770), 0);
        cr_expect_eq(gr_disk_open(&refused, dir, PLENTY, s, false, NULL, NULL), GR_E_IO);
        cr_assert_eq(chmod(dir, 0700), 0);
    } else {
        cr_assert_eq(chown(dir, 12345, 12345), 0);
        gr_kv_clear(s);
        cr_expect_eq(gr_disk_open(&refused, dir, PLENTY, s, false, NULL, NULL), GR_E_IO);
        cr_expect_null(refused);
    }
    gr_session_close(&s);
    close_world(&w);
}

/* Files of another model, or of other types of K, stay and are not used. */
Test(disk, files_of_others)
{
    struct world w = load_world(tiny_model(false), 2, 512), q = w;
    struct gr_rng rng = gr_rng_new(31);
    struct client *c = &client[0];
    const char *dir = tiny_path("cache");
    int32_t file;
    q.sp.type_k = "f32";
    struct gr_session *s = open_session(&w, 512, 1), *other = open_session(&q, 512, 1);
    make_client(&w, c, &rng, 60);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
    free(save_text(&w, disk, s, c, 50));
    gr_disk_close(&disk);
    disk = open_disk(&q, other, dir, PLENTY);
    cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 50, &file), 0);
    cr_expect_eq(gr_disk_stats(disk).n_file, 0);
    cr_expect_gt(gr_disk_stats(disk).bytes, 0);
    free(save_text(&q, disk, other, c, 50));
    cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 50, &file), 50);
    gr_disk_close(&disk);
    cr_expect_eq(n_files(dir), 2);
    gr_session_close(&s);
    gr_session_close(&other);
    close_world(&w);
}

/* Reads or writes a file; *n its length. */
static unsigned char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    cr_assert(f && !fstat(fileno(f), &st));
    *n = (size_t)st.st_size;
    unsigned char *p = malloc(*n);
    cr_assert_eq(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

static void write_file(const char *path, const unsigned char *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f);
    cr_assert_eq(fwrite(p, 1, n, f), n);
    fclose(f);
}

/* Any byte that is changed, and any length, is noticed: the file goes, and nothing is restored. */
Test(disk, damaged_files_are_removed)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(32);
    struct client *c = &client[0];
    const char *dir = tiny_path("cache");
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
    int32_t file;
    size_t n;
    make_client(&w, c, &rng, 60);
    free(save_text(&w, disk, s, c, 50));
    gr_disk_close(&disk);
    char *path = strdup(file_at(dir, 0));
    unsigned char *good = read_file(path, &n);
    for (int i = 0; i < 300; i++) {
        bool cut = i % 3 == 2;
        size_t at = i < 150 ? (size_t)gr_rng_below(&rng, 400) : gr_rng_below(&rng, (uint32_t)n);
        unsigned char *bad = malloc(n);
        memcpy(bad, good, n);
        bad[at] ^= (unsigned char)(1u << gr_rng_below(&rng, 8));
        write_file(path, cut ? good : bad, cut ? at : n);
        free(bad);
        gr_kv_clear(s);
        disk = open_disk(&w, s, dir, PLENTY);
        bool found = gr_disk_find(disk, 3, c->prompt, 50, &file) == 50;
        if (found)
            cr_expect_eq(load(disk, file, 0), GR_E_CORRUPT, "%d at %zu", i, at);
        cr_expect_eq(gr_kv_used(s), 0);
        gr_disk_wait(disk);
        /* one whose model or version was changed is another's */
        cr_expect(access(path, F_OK) || (at >= 8 && at < 72 && !cut), "%d at %zu", i, at);
        cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 50, &file), 0);
        gr_disk_close(&disk);
    }
    write_file(path, good, n);
    disk = open_disk(&w, s, dir, PLENTY);
    cr_expect_eq(gr_disk_find(disk, 3, c->prompt, 50, &file), 50);
    cr_expect_eq(load(disk, file, 0), 0);
    gr_disk_close(&disk);
    free(good), free(path);
    gr_session_close(&s);
    close_world(&w);
}

/* The file used longest ago goes, a use being a restore too; a text that goes on replaces its
 * beginning; an unfinished file goes when the folder is opened. */
Test(disk, the_oldest_go_first)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(33);
    const char *dir = tiny_path("cache");
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
    int32_t file;
    for (int i = 0; i < 4; i++) {
        make_client(&w, &client[i], &rng, 60);
        free(save_text(&w, disk, s, &client[i], 50));
    }
    gr_disk_wait(disk);
    uint64_t bytes = gr_disk_stats(disk).bytes;
    gr_kv_clear(s);
    cr_assert_eq(gr_disk_find(disk, 3, client[0].prompt, 50, &file), 50);
    cr_assert_eq(load(disk, file, 0), 0);
    gr_disk_close(&disk);
    disk = open_disk(&w, s, dir, bytes); /* as a later run would */
    make_client(&w, &client[4], &rng, 60);
    free(save_text(&w, disk, s, &client[4], 50));
    for (int i = 0; i < 5; i++)
        cr_expect_eq(gr_disk_find(disk, 3, client[i].prompt, 50, &file), i == 1 ? 0 : 50, "%d", i);
    cr_expect_leq(gr_disk_stats(disk).bytes, bytes);
    free(save_text(&w, disk, s, &client[4], 40)); /* is there */
    cr_expect_eq(gr_disk_stats(disk).n_file, 4);
    gr_disk_close(&disk);
    disk = open_disk(&w, s, dir, PLENTY);
    free(save_text(&w, disk, s, &client[4], 55));
    gr_disk_wait(disk);
    cr_expect_eq(gr_disk_stats(disk).n_file, 4);
    cr_expect_eq(n_files(dir), 4);
    gr_disk_close(&disk);
    char unfinished[600];
    snprintf(unfinished, sizeof unfinished, "%s.tmp-0123abcd", file_at(dir, 0));
    write_file(unfinished, (const unsigned char *)"x", 1);
    disk = open_disk(&w, s, dir, 1); /* none fits */
    cr_expect_eq(n_files(dir), 0);
    gr_disk_close(&disk);
    gr_session_close(&s);
    close_world(&w);
}

/* A state that has more tokens than the text of its file, which a program other than this one could
 * write, is used by none. */
Test(disk, a_state_of_another_text)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_rng rng = gr_rng_new(37);
    const char *dir = tiny_path("cache");
    int32_t file;
    make_client(&w, &client[0], &rng, 60);
    struct gr_disk *disk = open_disk(&w, s, dir, PLENTY);
    decode(s, client[0].prompt, 60);
    gr_disk_save(disk, 0, 3, client[0].prompt, 50);
    gr_disk_wait(disk);
    gr_kv_clear(s);
    cr_assert_eq(gr_disk_find(disk, 3, client[0].prompt, 50, &file), 50);
    cr_expect_eq(load(disk, file, 0), GR_E_CORRUPT);
    cr_expect_eq(gr_kv_used(s), 0);
    cr_expect_eq(gr_disk_find(disk, 3, client[0].prompt, 50, &file), 0);
    gr_disk_wait(disk);
    cr_expect_eq(n_files(dir), 0);
    gr_disk_close(&disk);
    gr_session_close(&s);
    close_world(&w);
}

/* A folder that is none is refused; a full disk costs a warning, and leaves nothing behind. */
Test(disk, writing_fails)
{
    struct world w = load_world(tiny_model(false), 2, 512);
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_rng rng = gr_rng_new(36);
    struct rlimit all, few;
    struct gr_disk *disk;
    const char *path = tiny_path("file"), *dir = tiny_path("cache");
    write_file(path, (const unsigned char *)"x", 1);
    cr_expect_eq(gr_disk_open(&disk, path, PLENTY, s, false, NULL, NULL), GR_E_IO);
    cr_expect_null(disk);
    make_client(&w, &client[0], &rng, 60);
    disk = open_disk(&w, s, dir, PLENTY);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &all), 0);
    few = all, few.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &few), 0);
    free(save_text(&w, disk, s, &client[0], 50));
    gr_disk_wait(disk);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &all), 0);
    cr_expect_eq(gr_disk_stats(disk).n_saved, 0);
    cr_expect_eq(n_files(dir), 0);
    free(save_text(&w, disk, s, &client[0], 50));
    gr_disk_wait(disk);
    cr_expect_eq(gr_disk_stats(disk).n_saved, 1);
    cr_expect_eq(n_files(dir), 1);
    gr_disk_close(&disk);
    gr_session_close(&s);
    close_world(&w);
}

/* ---- with the scheduler ---- */

static struct world open_stored(const char *path, const char *dir, uint32_t n_cell)
{
    struct world w = load_world(path, 4, n_cell);
    w.p.cache_dir = dir, w.p.cache_bytes = PLENTY, w.p.cache_least = 32;
    start_world(&w);
    return w;
}

/* The next turn: the answer and a few tokens more are part of the prompt. */
static void go_on(const struct world *w, struct client *c, struct gr_rng *rng)
{
    struct client next;
    make_client(w, &next, rng, c->n_prompt + c->n + 5);
    memcpy(next.prompt, c->prompt, (size_t)c->n_prompt * sizeof *c->prompt);
    memcpy(next.prompt + c->n_prompt, c->token, (size_t)c->n * sizeof *c->token);
    *c = next;
}

/* Texts that were evicted, and those of an earlier run, go on from disk. */
Test(disk, texts_come_back)
{
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf"), *dir = tiny_path(archs[a]);
        tiny_write_arch(archs[a], path);
        struct gr_rng rng = gr_rng_new(34);
        int64_t n_restored = 0;
        for (int k = 0; k < 3; k++) {
            struct world w = open_stored(path, dir, 512);
            for (int i = 0; i < 8; i++) {
                if (!k)
                    make_client(&w, &client[i], &rng, 110 + 20 * i);
                else
                    go_on(&w, &client[i], &rng);
                submit(&w, &client[i]);
                if (i % 3 == 2)
                    run(&w);
            }
            run(&w);
            for (int i = 0; i < 8; i++) {
                check_alone(&w, &client[i], archs[a]);
                cr_expect(!k || client[i].result.n_cached >= client[i].n_prompt - 18,
                          "%s, run %d, request %d: %d cached", archs[a], k, i,
                          client[i].result.n_cached);
            }
            struct gr_scheduler_stats stats = gr_scheduler_stats(w.scheduler);
            n_restored += stats.n_restored;
            cr_expect_eq(stats.n_failed + stats.n_damaged, 0);
            close_world(&w);
        }
        cr_expect_eq(n_restored, 16, "%s: %lld", archs[a], (long long)n_restored);
    }
}

/* ---- ends at any moment ---- */

/* A run of requests without an end. */
static void run_for_ever(const char *path, const char *dir, uint64_t seed)
{
    struct world w = open_stored(path, dir, 512);
    struct gr_rng rng = gr_rng_new(seed);
    for (;;) {
        for (int i = 0; i < 6; i++) {
            make_client(&w, &client[i], &rng, 100 + (int32_t)gr_rng_below(&rng, 100));
            memset(client[i].prompt, 0, 40 * sizeof *client[i].prompt);
            client[i].prompt[0] = 3 + (int32_t)gr_rng_below(&rng, 8);
            client[i].n_predict = 2;
            submit(&w, &client[i]);
        }
        run(&w);
    }
}

/* Runs it until there is a file, or for so many microseconds; returns these. */
static uint32_t run_and_kill(const char *path, const char *dir, uint64_t seed, uint32_t us)
{
    enum { TICK = 1000 };
    uint32_t passed = 0;
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (!pid)
        run_for_ever(path, dir, seed);
    for (; us ? passed < us : !n_files(dir); passed += TICK)
        usleep(TICK);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return passed;
}

Test(disk, killed_at_any_moment)
{
    const char *path = tiny_path("model.gguf"), *dir = tiny_path("cache");
    struct gr_rng rng = gr_rng_new(35);
    tiny_write_arch("llama", path);
    cr_assert_eq(gr_output_folder(dir), 0);
    uint32_t first = run_and_kill(path, dir, 0, 0);
    for (int k = 1; k <= 50; k++)
        run_and_kill(path, dir, (uint64_t)k, first / 2 + gr_rng_below(&rng, 2 * first));
    struct world w = open_stored(path, dir, 2048); /* removes what was not completed */
    int n_found = n_files(dir);
    cr_assert_gt(n_found, 5);
    struct gr_scheduler_stats stats;
    for (int i = 0; i < 8; i++) { /* the beginnings that were used above */
        make_client(&w, &client[i], &rng, 100);
        memset(client[i].prompt, 0, 40 * sizeof *client[i].prompt);
        client[i].prompt[0] = 3 + i;
        submit(&w, &client[i]);
        run(&w);
        check_alone(&w, &client[i], "after kills");
    }
    gr_scheduler_step(w.scheduler);
    stats = gr_scheduler_stats(w.scheduler);
    cr_expect_eq(stats.n_damaged, 0);
    cr_expect_eq(stats.n_file, n_found);
    close_world(&w);
}
