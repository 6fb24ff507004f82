#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
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
Test(replace, commit_and_abort)
{
    char dir[] = "/tmp/gpurun-replace-XXXXXX", path[64];
    struct gr_replace r;
    struct stat st;
    char *text;
    size_t n;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    umask(022);
    for (int turn = 0; turn < 3; turn++) {
        cr_assert_eq(gr_replace_open(&r, path, 0666), 0, "%s", gr_error());
        fprintf(r.out, "turn %d", turn);
        cr_expect_eq(n_files(dir), (turn > 0) + r.named);
        if (turn == 2)
            gr_replace_abort(&r);
        else
            cr_assert_eq(gr_replace_commit(&r), 0, "%s", gr_error());
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

Test(replace, directory_missing)
{
    struct gr_replace r;
    cr_assert_eq(gr_replace_open(&r, "/nowhere/file", 0666), GR_E_IO);
    cr_expect_not_null(strstr(gr_error(), "/nowhere/file"), "%s", gr_error());
    gr_replace_abort(&r);
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
Test(replace, no_room)
{
    static const size_t sizes[] = {100, 1 << 20};
    char dir[] = "/tmp/gpurun-replace-XXXXXX", path[64];
    static char big[1 << 20];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        struct gr_replace r;
        char *text;
        size_t n;
        cr_assert_eq(gr_replace_open(&r, path, 0666), 0, "%s", gr_error());
        fputs("old", r.out);
        cr_assert_eq(gr_replace_commit(&r), 0, "%s", gr_error());
        cr_assert_eq(gr_replace_open(&r, path, 0666), 0, "%s", gr_error());
        limit_files(10);
        fwrite(big, 1, sizes[i], r.out);
        int rc = gr_replace_commit(&r);
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
