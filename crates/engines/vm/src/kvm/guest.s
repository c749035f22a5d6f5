# A guest of 416 bytes that does what kernels rely on: protected and long mode, paging, a page fault that it repairs, CPUID, and
# timer interrupts that wake a halted processor. It reports each step by a letter at port 0xe9, and its success at port 0xf4.
#
# It is firmware: QEMU maps it below 1 MiB and below 4 GiB, and a jump of three bytes in the reset vector leads to `start`, in real
# mode with a CS base of 0xffff0000. From protected mode on it runs from BASE. Memory that it uses:
#
#   0x1000  PML4    0x2000  page directory pointers    0x3000, 0x4000, 0x5000  page directories of the 1st, 4th and 2nd GiB
#   0x6000  IDT     0x8000  top of the stack

.set BASE, 0xf0000

.code16
.Lstart:
    movb $'r', %al
    outb %al, $0xe9
    cli
    lgdtl %cs:(.Lgdt_register - .Lstart)
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmpl $8, $(BASE + .Lprotected - .Lstart)

.code32
.Lprotected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x8000, %esp
    movb $'p', %al
    outb %al, $0xe9
    # Clear the tables.
    xorl %eax, %eax
    movl $0x1000, %edi
    movl $0x1800, %ecx
    rep stosl
    # Map the first 2 MiB, and the local APIC without a cache.
    movl $0x2003, 0x1000
    movl $0x3003, 0x2000
    movl $0x4003, 0x2018
    movl $0x83, 0x3000
    movl $0xfee0009b, 0x4fb8
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    movl $0x1000, %eax
    movl %eax, %cr3
    # EFER.LME, then CR0.PG.
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ljmpl $24, $(BASE + .Llong - .Lstart)

.code64
.Llong:
    movb $'l', %al
    outb %al, $0xe9
    movl $0x8000, %esp
    # Interrupt gates for vector 14 and vector 32.
    movl $0x00180000 + (.Lpage_fault - .Lstart), 0x60e0
    movl $0x000f8e00, 0x60e4
    movl $0x00180000 + (.Ltimer - .Lstart), 0x6200
    movl $0x000f8e00, 0x6204
    lidt (BASE + .Lidt_register - .Lstart)
    # Nothing is mapped there before the page fault.
    movl $0x40000000, %ebx
    movb $1, (%rbx)
    movb $'f', %al
    outb %al, $0xe9
    xorl %eax, %eax
    cpuid
    # Local APIC: enable; divide by 1; periodic at vector 32; initial count.
    movl $0xfee00000, %ebx
    movl $0x1ff, 0xf0(%rbx)
    movl $0x0b, 0x3e0(%rbx)
    movl $0x20020, 0x320(%rbx)
    movl $100000, 0x380(%rbx)
    xorl %ebp, %ebp
.Lhalted:
    sti
    hlt
    cli
    cmpl $20, %ebp
    jb .Lhalted
    movb $'h', %al
    outb %al, $0xe9
    movb $42, %al
    outb %al, $0xf4
.Ldead:
    hlt
    jmp .Ldead

.Ltimer:
    incl %ebp
    # End of interrupt.
    movl $0, 0xb0(%rbx)
    iretq

.Lpage_fault:
    # Drop the error code, and map the page by a page directory of the 2nd GiB.
    addq $8, %rsp
    movl $0x83, 0x5000
    movl $0x5003, 0x2008
    iretq

.balign 8
.Lgdt:
    .quad 0
    .quad 0x00cf9a000000ffff
    .quad 0x00cf92000000ffff
    .quad 0x00af9a000000ffff
.Lgdt_register:
    .word 31
    .long BASE + .Lgdt - .Lstart
.Lidt_register:
    .word 0xfff
    .quad 0x6000
