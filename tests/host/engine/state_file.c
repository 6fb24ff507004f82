/* The container of saved states: every damage is found, and a file is the old one or the new one
 * whatever happens while it is written. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "engine/state_file.h"
#include "gr/status.h"

#define N_SECTION 4
static const uint64_t sizes[N_SECTION] = {100, 0, 9000, 1};

/* Writes sections whose bytes depend on the seed; pieces of 777. */
static int write_all(const char *path, uint64_t seed, void **data, size_t *n)
{
    struct gr_state_section table[N_SECTION];
    struct gr_state_writer w;
    struct gr_rng r = gr_rng_new(seed);
    for (uint32_t i = 0; i < N_SECTION; i++)
        table[i] = (struct gr_state_section){.kind = i, .index = 7 * i, .bytes = sizes[i]};
    int rc = gr_state_writer_open(&w, path, table, N_SECTION, 1);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < N_SECTION && !rc; i++)
        for (uint64_t at = 0; at < sizes[i] && !rc; at += 777) {
            uint8_t piece[777];
            for (int k = 0; k < 777; k++)
                piece[k] = (uint8_t)gr_rng_below(&r, 256);
            rc = gr_state_writer_put(&w, piece, sizes[i] - at < 777 ? sizes[i] - at : 777);
        }
    if (!rc)
        rc = gr_state_writer_commit(&w, data, n);
    gr_state_writer_close(&w);
    return rc;
}

static int verify(const char *path, const void *data, size_t n)
{
    struct gr_state_reader r;
    int rc = gr_state_reader_open(&r, path, data, n);
    if (!rc)
        rc = gr_state_reader_verify(&r);
    gr_state_reader_close(&r);
    return rc;
}

static bool refused(int rc)
{
    return rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED;
}

Test(state_file, what_is_written_is_read)
{
    struct gr_state_reader r;
    void *data;
    size_t n;
    cr_assert_eq(write_all(NULL, 1, &data, &n), 0, "%s", gr_error());
    cr_assert_eq(gr_state_reader_open(&r, NULL, data, n), 0, "%s", gr_error());
    cr_expect_eq(gr_state_reader_verify(&r), 0, "%s", gr_error());
    cr_expect_eq(r.n_section, N_SECTION);
    cr_expect_eq(r.scope, 1);
    struct gr_rng rng = gr_rng_new(1);
    for (uint32_t i = 0; i < N_SECTION; i++) {
        uint8_t got[9000];
        cr_expect_eq(r.table[i].kind, i);
        cr_expect_eq(r.table[i].index, 7 * i);
        cr_assert_eq(r.table[i].bytes, sizes[i]);
        gr_state_reader_seek(&r, i);
        for (uint64_t at = 0; at < sizes[i]; at += 1000)
            cr_assert_eq(
                gr_state_reader_get(&r, got + at, sizes[i] - at < 1000 ? sizes[i] - at : 1000), 0,
                "%s", gr_error());
        for (uint64_t k = 0; k < (sizes[i] + 776) / 777 * 777; k++) {
            uint8_t want = (uint8_t)gr_rng_below(&rng, 256);
            cr_assert(k >= sizes[i] || got[k] == want, "section %u, byte %d", i, (int)k);
        }
    }
    gr_state_reader_close(&r);
    gr_free(data);
}

Test(state_file, every_flipped_bit_is_found)
{
    uint8_t *data;
    size_t n;
    cr_assert_eq(write_all(NULL, 2, (void **)&data, &n), 0);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int rc = verify(NULL, data, n);
        cr_assert(refused(rc), "bit %zu: %d", bit, rc);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_expect_eq(verify(NULL, data, n), 0);
    gr_free(data);
}

Test(state_file, every_other_length_is_found)
{
    uint8_t *data;
    size_t n;
    cr_assert_eq(write_all(NULL, 3, (void **)&data, &n), 0);
    for (size_t k = 0; k < n; k++)
        cr_assert_eq(verify(NULL, data, k), GR_E_CORRUPT, "%zu bytes", k);
    data = gr_realloc(data, n + 1, 1);
    data[n] = 0;
    cr_expect_eq(verify(NULL, data, n + 1), GR_E_CORRUPT);
    cr_expect(strstr(gr_error(), "followed by others"), "%s", gr_error());
    gr_free(data);
}

/* Versions, byte orders and other files are told from damage. */
Test(state_file, what_it_is_instead_is_said)
{
    uint8_t *data;
    size_t n;
    cr_assert_eq(write_all(NULL, 4, (void **)&data, &n), 0);
    data[8]++;
    cr_expect_eq(verify(NULL, data, n), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "version 1 of the format expected, 2 found"), "%s", gr_error());
    data[8]--, data[12] = 1, data[15] = 4;
    cr_expect_eq(verify(NULL, data, n), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "byte order"), "%s", gr_error());
    memcpy(data, "GGUF", 4);
    cr_expect_eq(verify(NULL, data, n), GR_E_CORRUPT);
    cr_expect(strstr(gr_error(), "not a saved state"), "%s", gr_error());
    gr_free(data);
    cr_expect_eq(verify("/nowhere/state", NULL, 0), GR_E_IO);
    cr_expect(strstr(gr_error(), "/nowhere/state: No such file"), "%s", gr_error());
}

/* Each allocation of a save and of a restore fails once; nothing is lost. */
Test(state_file, no_memory)
{
    size_t before = gr_alloc_held(NULL);
    for (uint64_t k = 1, done = 0; !done; k++) {
        void *data = NULL;
        size_t n;
        gr_alloc_fail_at(k, 0);
        int rc = write_all(NULL, 5, &data, &n);
        if (!rc)
            rc = verify(NULL, data, n);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %d: %d", (int)k, rc);
        gr_free(data);
        cr_expect_eq(gr_alloc_held(NULL), before, "allocation %d", (int)k);
    }
}

/* ---- files ---- */

static char dir[64], path[96];

static void make_dir(void)
{
    strcpy(dir, "/tmp/gpurun-state-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/state", dir);
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void remove_dir(void)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            unlink(name);
    }
    closedir(d);
    rmdir(dir);
}

Test(state_file, a_file_has_what_memory_has)
{
    struct stat st;
    char *text;
    void *data;
    size_t n, n_text;
    make_dir();
    cr_assert_eq(write_all(NULL, 6, &data, &n), 0);
    cr_assert_eq(write_all(path, 6, NULL, NULL), 0, "%s", gr_error());
    cr_assert_eq(gr_file_slurp(path, 1 << 20, &text, &n_text), 0);
    cr_expect_eq(n, n_text);
    cr_expect_eq(memcmp(text, data, n), 0);
    cr_expect_eq(verify(path, NULL, 0), 0, "%s", gr_error());
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600, "%o", st.st_mode);
    cr_assert_eq(truncate(path, (off_t)n - 1), 0);
    cr_expect_eq(verify(path, NULL, 0), GR_E_CORRUPT);
    cr_expect(strstr(gr_error(), path), "%s", gr_error());
    gr_free(text), gr_free(data);
    remove_dir();
}

/* A file that cannot be written leaves the old one and no temporary one; the message says where,
 * and a remedy. */
Test(state_file, no_room)
{
    static const rlim_t room[] = {10, 5000};
    make_dir();
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(write_all(path, 7, NULL, NULL), 0);
    for (int i = 0; i < 2; i++) {
        struct rlimit l;
        getrlimit(RLIMIT_FSIZE, &l);
        rlim_t all = l.rlim_cur;
        l.rlim_cur = room[i];
        setrlimit(RLIMIT_FSIZE, &l);
        int rc = write_all(path, 8, NULL, NULL);
        l.rlim_cur = all;
        setrlimit(RLIMIT_FSIZE, &l);
        cr_expect_eq(rc, GR_E_IO);
        cr_expect(strstr(gr_error(), path) && strstr(gr_error(), "File too large") &&
                      strstr(gr_error(), "room"),
                  "%s", gr_error());
        cr_expect_eq(n_files(), 1);
        cr_expect_eq(verify(path, NULL, 0), 0, "%s", gr_error());
    }
    remove_dir();
    cr_expect_eq(write_all("/nowhere/state", 8, NULL, NULL), GR_E_IO);
    cr_expect(strstr(gr_error(), "/nowhere/state: there is no folder /nowhere; make it"), "%s",
              gr_error());
}

/* The first byte of the largest section tells which save a file is of. */
static int which(const char *name)
{
    struct gr_state_reader r;
    uint8_t all[9000];
    int rc = gr_state_reader_open(&r, name, NULL, 0);
    if (!rc) {
        gr_state_reader_seek(&r, 2);
        rc = gr_state_reader_get(&r, all, sizeof all);
    }
    gr_state_reader_close(&r);
    return rc ? -1 : all[0];
}

/* Files that are whole states: a death just before the last renaming leaves one. */
static int n_complete(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        n += e->d_name[0] != '.' && which(name) >= 0;
    }
    closedir(d);
    return n;
}

static int save_mark(uint8_t mark)
{
    struct gr_state_section table[N_SECTION] = {{0}};
    struct gr_state_writer w;
    uint8_t all[9000];
    memset(all, mark, sizeof all);
    table[2].bytes = sizeof all;
    int rc = gr_state_writer_open(&w, path, table, N_SECTION, 0);
    for (int at = 0; at < 9000 && !rc; at += 500) {
        rc = gr_state_writer_put(&w, all + at, 500);
        (void)gr_output_flush(w.file); /* so that a death finds half a file */
    }
    if (!rc)
        rc = gr_state_writer_commit(&w, NULL, NULL);
    gr_state_writer_close(&w);
    return rc;
}

/* A child saves in a loop and says through a pipe which save has begun; it is killed 200 times. */
Test(state_file, killed_while_saving, .timeout = 120)
{
    struct gr_rng rng = gr_rng_new(9);
    make_dir();
    cr_assert_eq(save_mark(0), 0);
    int last = 0;
    for (int round = 0; round < 200; round++) {
        int fd[2], status;
        cr_assert_eq(pipe(fd), 0);
        pid_t child = fork();
        if (child == 0) {
            for (uint8_t mark = (uint8_t)(last + 1);; mark++)
                if (write(fd[1], &mark, 1) != 1 || save_mark(mark) != 0)
                    _exit(1);
        }
        uint8_t begun[4096];
        cr_assert_eq(read(fd[0], begun, 1), 1);
        usleep((useconds_t)gr_rng_below(&rng, 3000));
        cr_assert_eq(kill(child, SIGKILL), 0);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status), "the child ended by itself: %d", status);
        close(fd[1]);
        ssize_t n = read(fd[0], begun + 1, sizeof begun - 1);
        close(fd[0]);
        int now = which(path), newest = begun[n];
        cr_assert(now >= 0, "round %d: %s", round, gr_error());
        cr_assert(now == newest || now == (uint8_t)(newest - 1),
                  "round %d: save %d was under way, the file has %d", round, newest, now);
        last = now;
    }
    struct gr_output *r;
    cr_assert_eq(gr_output_open(&r, path, 0), 0);
    bool named = r->named;
    gr_output_abort(&r);
    cr_expect(named || n_complete() == n_files(), "%d of %d files: half of one has no name",
              n_complete(), n_files());
    remove_dir();
}
