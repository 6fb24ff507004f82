/* The built-in model: the bytes of GR_BUILTIN_FILE, or none (both symbols equal) when the build had no such file.
 *   extern const uint8_t gr_builtin_model[], gr_builtin_model_end[]; */
#ifdef __CET__
#include <cet.h>
#endif
    .section .rodata
    .balign 4096
    .globl gr_builtin_model
    .hidden gr_builtin_model
gr_builtin_model:
#ifdef GR_BUILTIN_FILE
    .incbin GR_BUILTIN_FILE
#endif
    .globl gr_builtin_model_end
    .hidden gr_builtin_model_end
gr_builtin_model_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
