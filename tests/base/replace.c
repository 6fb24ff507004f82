#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
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
        cr_assert_eq(gr_replace_open(&r, path), 0, "%s", gr_error());
        fprintf(r.out, "turn %d", turn);
        cr_expect_eq(n_files(dir), turn ? 2 : 1);
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
    cr_assert_eq(gr_replace_open(&r, "/nowhere/file"), GR_E_IO);
    cr_expect_not_null(strstr(gr_error(), "/nowhere/file"), "%s", gr_error());
    gr_replace_abort(&r);
}
