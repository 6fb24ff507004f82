#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/output.h"
#include "gr/status.h"

static int n_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* A reader sees the old file until commit; the new one has the permissions of any new file. */
Test(output, commit_and_abort)
{
    char dir[] = "/tmp/gpurun-replace-XXXXXX", path[64];
    struct gr_output *r;
    struct stat st;
    char *text;
    size_t n;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    umask(022);
    for (int turn = 0; turn < 3; turn++) {
        cr_assert_eq(gr_output_open(&r, path, 0), 0, "%s", gr_error());
        fprintf(r->out, "turn %d", turn);
        cr_expect_eq(n_files(dir), (turn > 0) + r->named);
        if (turn == 2)
            gr_output_abort(&r);
        else
            cr_assert_eq(gr_output_commit(&r), 0, "%s", gr_error());
        cr_expect_eq(n_files(dir), 1);
        cr_assert_eq(gr_file_slurp(path, 100, &text, &n), 0);
        cr_expect_str_eq(text, turn ? "turn 1" : "turn 0");
        gr_free(text);
        cr_assert_eq(stat(path, &st), 0);
        cr_expect_eq(st.st_mode & 0777, 0644, "%o", st.st_mode);
    }
    unlink(path);
    rmdir(dir);
}

/* A name that has no room for the end of a temporary one. */
Test(output, longest_name)
{
    char dir[] = "/tmp/gpurun-output-XXXXXX", path[400], *text;
    size_t n;
    struct gr_output *r;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/%0255d", dir, 1);
    cr_assert_eq(gr_output_open(&r, path, 0), 0, "%s", gr_error());
    cr_expect_eq(gr_output_put(r, "new", 3), 0);
    cr_assert_eq(gr_output_commit(&r), 0, "%s", gr_error());
    cr_assert_eq(gr_file_slurp(path, 100, &text, &n), 0, "%s", gr_error());
    cr_expect_str_eq(text, "new");
    cr_expect_eq(n_files(dir), 1);
    gr_free(text);
    unlink(path);
    snprintf(path, sizeof path, "%s/%0256d", dir, 1);
    cr_expect_eq(gr_output_check(path, 0), GR_E_IO);
    cr_expect(strstr(gr_error(), "File name too long"), "%s", gr_error());
    rmdir(dir);
}

/* A live file is there from the start and has what was flushed. */
Test(output, live)
{
    char dir[] = "/tmp/gpurun-output-XXXXXX", path[64], *text;
    size_t n;
    struct gr_output *r;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    for (int turn = 0; turn < 2; turn++) {
        cr_assert_eq(gr_output_open(&r, path, GR_OUTPUT_LIVE), 0, "%s", gr_error());
        cr_expect_eq(gr_output_put(r, "line", 4) + gr_output_flush(r), 0);
        cr_assert_eq(gr_file_slurp(path, 100, &text, &n), 0);
        cr_expect_str_eq(text, "line");
        gr_free(text);
        cr_expect_eq(gr_output_commit(&r), 0, "%s", gr_error());
    }
    unlink(path);
    rmdir(dir);
}

/* A write that was refused once is refused until the end, with the same reason. */
Test(output, an_error_stays)
{
    char dir[] = "/tmp/gpurun-output-XXXXXX", path[64];
    struct gr_output *r;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/full", dir);
    cr_assert_eq(symlink("/dev/full", path), 0);
    cr_assert_eq(gr_output_open(&r, path, GR_OUTPUT_KEEP), 0, "%s", gr_error());
    cr_expect_eq(gr_output_put(r, "line", 4), 0);
    cr_expect_eq(gr_output_flush(r), GR_E_IO);
    errno = 0;
    cr_expect_eq(gr_output_put(r, "line", 4), GR_E_IO);
    cr_expect_eq(gr_output_commit(&r), GR_E_IO);
    cr_expect(strstr(gr_error(), "No space left"), "%s", gr_error());
    cr_expect_null(r);
    unlink(path);
    rmdir(dir);
}

Test(output, directory_missing)
{
    struct gr_output *r;
    cr_assert_eq(gr_output_open(&r, "/nowhere/file", 0), GR_E_IO);
    cr_expect_not_null(strstr(gr_error(), "/nowhere/file"), "%s", gr_error());
    gr_output_abort(&r);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &l);
}

/* The disk is full, while writing or only at the last flush: the old file stays, the temporary one
 * goes, and the reason is told. */
Test(output, no_room)
{
    static const size_t sizes[] = {100, 1 << 20};
    char dir[] = "/tmp/gpurun-replace-XXXXXX", path[64];
    static char big[1 << 20];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        struct gr_output *r;
        char *text;
        size_t n;
        cr_assert_eq(gr_output_open(&r, path, 0), 0, "%s", gr_error());
        fputs("old", r->out);
        cr_assert_eq(gr_output_commit(&r), 0, "%s", gr_error());
        cr_assert_eq(gr_output_open(&r, path, 0), 0, "%s", gr_error());
        limit_files(10);
        (void)gr_output_put(r, big, sizes[i]);
        int rc = gr_output_commit(&r);
        limit_files(RLIM_INFINITY);
        cr_expect_eq(rc, GR_E_IO);
        cr_expect(strstr(gr_error(), "File too large"), "%s", gr_error());
        cr_expect_eq(n_files(dir), 1);
        cr_assert_eq(gr_file_slurp(path, 100, &text, &n), 0);
        cr_expect_str_eq(text, "old");
        gr_free(text);
    }
    unlink(path);
    rmdir(dir);
}
