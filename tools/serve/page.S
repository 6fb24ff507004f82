/* The web page, the bytes of GR_PAGE_FILE, and the description of the interface, those of
 * GR_OPENAPI_FILE, each with a zero behind it.
 *   extern const char gr_page_text[], gr_page_text_end[], gr_openapi_text[], gr_openapi_text_end[]; */
#ifdef __CET__
#include <cet.h>
#endif
    .section .rodata
    .globl gr_page_text
    .hidden gr_page_text
gr_page_text:
    .incbin GR_PAGE_FILE
    .globl gr_page_text_end
    .hidden gr_page_text_end
gr_page_text_end:
    .byte 0
    .globl gr_openapi_text
    .hidden gr_openapi_text
gr_openapi_text:
    .incbin GR_OPENAPI_FILE
    .globl gr_openapi_text_end
    .hidden gr_openapi_text_end
gr_openapi_text_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
