/* Opening what is not a file. */
#include "base/file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gr/status.h"

/* A pipe that nobody writes to is refused at once; waiting for a writer would hang for ever. */
Test(file, refuses_what_is_no_regular_file, .timeout = 10)
{
    char dir[] = "/tmp/gpurun-file-XXXXXX", path[64];
    struct gr_file f;
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pipe", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(gr_file_open(&f, path, true), GR_E_IO);
    cr_expect(strstr(gr_error(), "not a regular file"), "%s", gr_error());
    cr_expect_eq(gr_file_open(&f, dir, true), GR_E_IO);
    cr_expect_eq(gr_file_open(&f, "/dev/zero", true), GR_E_IO);
    unlink(path);
    cr_expect_eq(gr_file_open(&f, path, true), GR_E_NO_MODEL);
    rmdir(dir);
}
