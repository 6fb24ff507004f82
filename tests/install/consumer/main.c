#include <gpurun.h>
#include <gr/status.h>
#include <stdio.h>

int main(void)
{
    printf("gpurun %s: %s is exit code %d\n", gr_version(), gr_status_text(GR_E_CORRUPT),
           gr_status_exit(GR_E_CORRUPT));
    return 0;
}
