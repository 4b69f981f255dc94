	.section	.rodata.MODEL_weights,"",@
	.globl	MODEL_weights
	.hidden	MODEL_weights
	.p2align	6
	.type	MODEL_weights,@object
MODEL_weights:
	.incbin	"FILE"
	.size	MODEL_weights, BYTES
