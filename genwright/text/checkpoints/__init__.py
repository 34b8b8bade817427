"""One reader per checkpoint format; all of them use Hugging Face's tensor names."""
