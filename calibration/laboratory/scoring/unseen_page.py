"""The page of reports to which nothing was fitted: errors by report, engine and GPU. Replays nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.planner.measured.point import METRICS, MeasuredPoint
from simserve.planner.measured.reports import Excluded, read_exclusions
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import grouped
from simserve.planner.validation.validate import Validation
from simserve.version import __version__

_HEAD = """# Reports that nothing was fitted to

Written by `simserve validate --source unseen --accuracy FILE --date DATE`, simserve {version}, {date}. Do not edit.

This page compares simserve with public results of benchmarks from issues, documentation and repositories of
benchmarks. They are in no table that simserve is scored by: {covered} of {points} were run. The files beside this
page hold every figure with its report, its date and what had to be assumed. Two constants are fitted to some of them,
because nothing else tells them: the pace of 16-bit products on an L40S (seven reports, each left out in turn) and
what a sequence beyond the first costs under Ollama (one report). Their figures stand in the tables below; elsewhere
they count with the errors of their first replay (first_replay.yaml). Everything that was read of each report is here,
except what is listed below with its reason. Sweeps are represented by their ends and two loads between.

A cell is the median / 90th percentile of the absolute relative error, then the bias (mean of predicted - measured over
measured; above 0: the simulator is too high) and the number of figures. `*`: compared but not scored, as the file says
why.

**First replay.** The first 193 were first replayed on 2026-11-22, before any step time was changed for what they
showed: TPOT 25 / 62 %, -11 % (105), TTFT 49 / 87 %, -17 % (98), E2E 10 / 27 %, -0 % (16), throughput 27 / 104 %,
+37 % (157). That replay is the exam. Lengths of ShareGPT were taken as lognormal then. With the lengths that the
benchmark sends (lengths/README.md), the same simulator gives 22, 48 and 27 % in the median of TPOT, TTFT and
throughput.

**Changes since.** The following were changed with constants of other sources, but in the knowledge of these errors:

- host time of vLLM before 0.5.5;
- experts in MXFP4 on A100, and experts in 4 bits on A100;
- links of MI300X and PCIe, and all-reduces over PCIe;
- launches without CUDA graphs;
- what preempted requests find in the prefix cache;
- the rate of Marlin's kernels;
- routers and shared experts of older vLLM;
- kernels of GPUs without tables;
- GH200 in nodes of four, SGLang's products and experts on MI300X and B200, AMD's all-reduces, rows of GGUF formats.

So the tables below show today's errors, and no longer those of rows that nobody had seen. DeepSeek-R1 under SGLang on
eight H200 had been described as on 64 of them until 2026-11-26.

**Later reports, each predicted before the simulator had seen them.**

- Four reports of GPUStack's laboratory were added on 2026-11-26, with 52 loads, of which 45 run. In the median the
  simulator was 9.3 % off in TPOT, 25 % in TTFT and 18 % in throughput. Their bursts of a thousand chats then led to
  modelling what API servers do one after another; that they are chats has been described since.
- Seven more were predicted blind later that day, with 48 loads of RTX 4090, A40, A6000, L40S, H20, H100 PCIe and
  MI300X: TPOT 16 %, TTFT 36 % and throughput 17 % in the median (an eighth, Qwen3-0.6B by 500 clients at once:
  throughput +102 %). What they showed led to three changes: memory that vLLM's samplers leave to the KV cache, SGLang's
  experts in MXFP4, and curves of MI300X.
- Seven more were predicted blind last, with 54 loads of RTX 4090, 5090 and PRO 6000, L40S, A100, H200, B200 and MI300X:
  TPOT 14.5 % (42 figures), TTFT 23 % (35) and throughput 16.5 % (46) in the median, five loads refused. They led to
  changes in SGLang's memory under data-parallel attention and in Triton's attention on MI300X.
- Seven files more were predicted blind after that, with 72 loads of A100 of 40 GB, L40S, RTX PRO 6000, 3090 and 4090,
  H100, H200, B200, MI300X and MI355X: throughput 5.9 % in the median (55 figures), TTFT 10.5 % (13), TPOT 21 % (14,
  nine of them gpt-oss-20b at -13 to -62 %); four loads were refused. They led to curves of experts in MXFP4 on MI300X
  and MI325X and to slower all-reduces of consumer cards.
- Ten files more were predicted blind on 2026-11-27, with 95 loads of A100, H100, H200, B200, B300, GB300, MI300X,
  MI350X, MI355X and the DGX Spark: throughput 14.5 % in the median (72 figures), TTFT 17 % (72), TPOT 21 % (82); none
  was refused. They led to the states of linear attention that SGLang keeps for a request: Qwen3.6 on H200, B200 and
  B300 had been given 1.6 times the requests at once that it serves; and to experts by Triton on MI300X, whose kernels
  other sources time.
- Twenty-four files more were predicted blind later that day, with 211 loads of L4, A10, A100, H100, H200, H800, GH200,
  B200, MI300X, RTX 4090 and M3 Max: throughput 11 % in the median (175 figures), TTFT 23 % (172), TPOT 21 % (158), E2E
  18 % (44). Half of them are servers with a feature beside the same server without it. What a feature changes,
  simulated over measured: EAGLE's gain in throughput on GH200 2 % off in the median of 12 pairs (13 at most),
  EAGLE-3's in TPOT on H100 4 % of 6 (8), TensorRT-LLM's drafts on B200 2 to 12 % of 4, chunked prefill's in TPOT on
  A10 2 to 9 % of 5. Prefill and decode apart is not right: under vLLM 0.6 on A10 first tokens wait 1.6 to 2.8 times as
  long as together, where 1.0 is simulated. The loads with separate workers were predicted as a run of them says;
  `validate` itself had replayed them together, and says the same now. Total tokens/s of four older loads had been
  taken over the span of the tokens that the client saw.
- Twenty-two files more, of about as many laboratories that were new, were predicted blind last, with 194 loads of T4,
  A10G, A40, A100, A800, H20, H100, H200, H800, B200, MI300X, L40S, RTX 4090, 5090 and PRO 6000 and the DGX Spark. Nine
  of them (large models with experts; prefill and decode apart; long prompts): throughput 18 % in the median (92
  figures), TTFT 34 % (65), TPOT 14 % (55), E2E 25 % (30). Thirteen (one or two GPUs, other engines): throughput 8.6 %
  (76), TTFT 28 % (53), TPOT 13 % (37), E2E 17 % (42). Two descriptions were corrected after that: llama.cpp's context
  is that of all slots, and prompts that one run sends after another came out of the prefix cache. They led to the pace
  of Marlin's kernels on Blackwell, to the kernels that SGLang before 0.4.6 and vLLM before 0.8 had for DeepSeek's
  layers, and to the file that llama.cpp has of gpt-oss: each by sources of its own, none fitted to a report.
- Twenty-five files more, of fifteen laboratories, were predicted blind on 2026-11-28, with 229 loads of T4, L4, L40S,
  A100, H20, H100, H200, H800, B200, MI300X, RTX 3090, 4090, 5090 and PRO 6000: TPOT 14 % in the median (108 figures),
  TTFT 28 % (66), E2E 11 % (115), throughput 13 % (118); nine loads of three servers were refused, which had run. They
  led to the states of hybrid models that share vLLM's KV pool (the nine: TPOT 1 to 16 %, throughput 1 to 13), to draft
  models whose passes find no CUDA graph, to experts in 16 bit by Triton on B200 and to the bandwidth of A10G, A10 and
  A40: each by sources of its own. Seven files of a laboratory that is among the measured data were taken out again;
  tokens/s of one report and speeds of another are shown alone, as they contradict their own pages.
- Kimi-K3 under SGLang on B300 and MI355X, eleven loads, written down before the model could be simulated and replayed
  with the first profile of it: TPOT +56, +15 and +15 % on B300 for 1, 16 and 64 clients, +15 and +14 % on MI355X, TTFT
  -19 to +43 %, bursts of 32 prompts twice as fast as measured.
- Twenty-four files more, of fifteen laboratories that were not there and four that were, were predicted blind later
  that day: 85 loads of T4, A10, L40S, L20, A100, H100, RTX 4090, 5090 and PRO 6000 and the DGX Spark (throughput 9.1 %
  in the median of 52 figures, TTFT 26 % of 30, TPOT 9.8 % of 28, E2E 9.1 % of 41) and 79 of H100, B200, GB200, B300,
  MI300X, MI325X, MI350X and MI355X (throughput 17 % of 70, TTFT 14 % of 18, TPOT 21 % of 39, E2E 16 % of 20). Six loads
  that were compared then are left out: their page contradicts itself, or its branch is in no release; one checkpoint
  has its page's name since. They led to experts in INT4 by Triton on AMD's GPUs, which other sources time, and to ranks
  of two hosts under SGLang, fitted to measured servers.
- Twenty-one files more, of seventeen laboratories that were not there, were predicted blind after that, with 201 loads;
  all ran. 74 of L4, L40S, A100, H100, GH200 and B200: throughput 7.8 % in the median of 64 figures, TTFT 21 % of 40,
  TPOT 5.8 % of 53, E2E 10 % of 12. 127 of RTX 3090, 4090, 5090, A5000, 5000 Ada, PRO 5000 and PRO 6000, A30, A100,
  H200, Radeon R9700 and the DGX Spark: throughput 9.3 % of 89, TTFT 24 % of 65, TPOT 8.1 % of 94, E2E 15 % of 22.
  Ranges of 90 % held 94 % of the throughputs, 89 % of the TTFTs and 95 % of the TPOTs. In one file a key was taken out
  that its release does not have, and a server was taken out that another file has.
- Twenty-five files more, of 25 laboratories that were not there, were predicted blind after that, with 224 loads, of
  which 222 run: engines of which few reports were there (Ollama, llama.cpp with 32 slots, TGI, LMDeploy, TensorRT-
  LLM, AMD's GPUs) and rates up to more than a server finishes. Throughput 14 % in the median of 125 figures, TTFT 33
  % of 99, TPOT 11 % of 129, E2E 10 % of 58. Ranges of 90 % held 69 % of the throughputs, 81 % of the TTFTs and 88 %
  of the TPOTs: Ollama with several slots was 1.3 to 4 times as fast as measured, and one file lacked the scheduler
  that its report names. Without these two, 11, 27 and 10 %. Both were looked into afterwards.
- Two files more with 12 loads, of an L40S pair and a GH200, followed what is said of these GPUs above: throughput 23 %,
  TTFT 9 %, TPOT 17 % (Qwen2.5-3B under SGLang 0.5.5 is a quarter to a third slower than predicted).
- Six files more, of four laboratories that were not there and two that were, were predicted blind on 2026-11-29, with
  44 loads, of which 43 run: LMDeploy 0.4 and vLLM on RTX 3090, vLLM on an RTX A6000 and a Jetson Thor, TensorRT-LLM 1.3
  on a GB10,
  llama.cpp and Ollama on an RTX 4090. Throughput 17 % in the median of 37 figures, TTFT 23 % of 33, TPOT 21 % of 37.
  Ranges of 90 % held 89 % of the throughputs, all TTFTs and 97 % of the TPOTs. A seventh file was left out after it was
  compared: its first tokens are earlier than its prompts take at the peak of the GPU (16 prompts of 441 tokens of an 8B
  model on an A10G: 1.6 s, 0.3 to 0.5 s on the page).
- Eleven files more, mostly of laboratories that were not there, were predicted blind later that day, with 102 loads of
  H100, H200, B200, B300, GB300 and MI300X (DeepSeek-R1, -V3.1 and -V4, GLM-5.2, MiniMax, gpt-oss-20b, Qwen3.5).
  Throughput 12 % in the median of 88 figures, TTFT 30 % of 97, TPOT 18 % of 77; ranges of 90 % held 73, 76 and 66 %.
  Eight of the files have 5.7, 12 and 8.6 %. The other three ran fewer requests at once than simulated (DeepSeek-V4
  under SGLang, whose limit for this model was not known here and is since then; Qwen3.5-4B with 1,024 clients, of
  which 24 run for a reason that is not known) or sent the KV cache between machines at a pace that stopped everything
  (vLLM's separate workers of the three B200 servers).
- Nine files more, of five laboratories that were not there and two that were, were predicted blind on the same day,
  with 104 loads: five models in NVFP4 on eight B300 and Kimi-K2.6 on sixteen H200 and H100 (SGLang), Gemma-4,
  gpt-oss, Nemotron, Qwen3.8 and DeepSeek-V4-Flash on RTX PRO 6000 and RTX 5090, Llama-3.1-8B and Qwen2.5-7B on an
  A100 of 40 GB, 70B models on H100, Qwen3-VL-8B on an H200. Throughput 11 % in the median of 104 figures, TTFT 19 %
  of 96, TPOT 12 % of 104; ranges of 90 % held 88, 91 and 91 %. Kimi-K2.6's first tokens (-99 %) wait for tens of
  seconds where nothing in the server's settings makes them wait: its tokens leave at some 3,000 a second, as those of
  Kimi-K2.5 on the B300 do, which looks like a detokeniser in Python; it is not simulated.
- Twelve files more, of nine laboratories that were not there and one that was, were predicted blind last, with 122
  loads of cards that are rare here: RTX 6000D, 4070 Super, 5060 Ti, 5080, 5090, PRO 6000 Max-Q, 3090, L4, L40S and
  H100, contexts up to 980,000, engines without graphs, separate prefill and decode workers. Throughput 15 % in the
  median of 82 figures, TTFT 25 % of 101, TPOT 17 % of 105; ranges of 90 % held 90, 96 and 94 %. What came to light:
  the host launches linear attention kernel by kernel, and NVFP4 products reach less of the bandwidth. One server, whose
  4-bit checkpoint is not the catalogue's, does not fit its cards since.
- Twelve files more, of twelve laboratories that were not there, were predicted blind after that, with 117 loads of
  A100, H100, GB300, MI350X, MI355X, RTX 3090, 4090 and PRO 6000 and GB10: Qwen3-235B over two A100 split in three
  ways, prompts of up to 262,144 tokens at the cache's limit, DeepSeek-V4-Pro and GLM-5.2 with prefill and decode
  apart, gpt-oss, DeepSeek-R1 and Llama 4 on AMD's GPUs. 112 ran; five had been given a release that lacks their model.
  Throughput 16 % in the median of 96 figures, TTFT 41 % of 86, TPOT 18 % of 73, E2E 34 % of 12; ranges of 90 % held
  85, 87 and 88 %. Five loads found their prompts in a prefix cache and are left out since; the release, seats and a
  share of memory of five servers were mended, and bursts described as such. What came to light: chunks of one long
  prompt follow each other through the stages of a pipeline, and requests that decode together stay one batch there;
  SGLang's DeepSeek-V4 takes longer for a prompt than its kernels explain; no steps without prompts of Llama 4 run on
  full CUDA graphs; kernels launched one by one take a slower host longer; gpt-oss on several MI355X is faster.
- Thirteen files more, of eleven laboratories that were not there, were predicted blind at the end, 127 loads of A10G,
  L4, L40S, H100, B200, MI300X, RTX 4080 Super, 5090 and PRO 6000 and two DGX Sparks: GLM-5.2 over eight B200 in three
  layouts, Llama-3.3-70B on an MI300X up to and beyond its memory, rates up to saturation, small Qwen3 in six formats.
  Throughput 12 % in the median of 107 figures, TTFT 14 % of 81, TPOT 18 % of 74, E2E 16 % of 30; ranges of 90 % held
  95, 94 and 93 %. No figure was changed since; ten KV rooms were added. What came to light: on GPUs with
  FlashAttention-2 steps with prompts read the keys of decodes once per query head; decodes beside prompts of models
  with linear attention cost half as much on an A10G; sparse attention over eight B200 is priced too dear;
  products in FP8 on an MI300X and experts in FP8 on an H100 miss to opposite sides by a fifth.
- Thirteen files more, of twelve laboratories that were not there, were predicted blind on 2026-11-30, 180 loads of
  A100, H100, H200, L40S, MI300X and RTX 3060, 4090, PRO 6000 and Max-Q: rates up to saturation on one card, Gemma 4
  and Qwen3.8 on one H200 with up to 1,024 requests at once, Kimi-Linear over four and eight cards with prompts of up
  to a million tokens, ShareGPT and full contexts on an L40S, Qwen3.8 over four L40S. All ran. Throughput 7 % in the
  median of 122 figures, TTFT 17 % of 141, TPOT 8 % of 115, E2E 7 % of 40; ranges of 90 % held 92, 93 and 90 %. Since
  then two repeats with other prompts stand apart, first tokens and rates of one script are loads of their own, the
  requests of four loads are put right, and 25 figures are shown only, of one text for all, of repeated prompts, of a
  client that waits and of medians between two lengths. What came to light: loads of models with windows were priced
  for other loads of their server here; all-reduces of one kind of machine reach a quarter of what its card reaches
  elsewhere, and small ones over eight cards take twice those over four; checkpoints in 4 bit keep linear attention in
  16; latent attention of one sequence takes longer on an MI300X, and heads of 512 on workstation Blackwell.
- Thirteen files more, of eleven laboratories, ten of which were not there, were predicted blind on 2026-11-30, 188
  loads of A100, H100, H100 NVL, GH200, L40S, B300, MI355X, RTX 5090 and PRO 6000: Qwen3-30B-A3B with an EAGLE-3 layer
  and with a small model as draft, Qwen3-8B and DeepSeek-V2-Lite at rates up to saturation, five models with up to 256
  clients on one card, Kimi-K3 over eight B300, MiniMax-M3 over four and eight MI355X, Dynamo's workers apart. All
  ran. Throughput 9 % in the median of 85 figures, TTFT 20 % of 104, TPOT 10 % of 91, E2E 10 % of 153; ranges of 90 %
  held 94, 91 and 90 %. Since then one client's lengths are those of its own trace, and three first tokens are shown
  only, of answers that end by themselves. What came to light: tokens of one step share more of their experts than is
  simulated, in gpt-oss and Qwen3-30B-A3B and between the drafts of one sequence; experts of workstation Blackwell
  take a quarter too long with 16 to 128 clients; first tokens at a rate come later than simulated well before
  saturation; Dynamo hands caches over in ten milliseconds where SGLang's own ninety are simulated; lengths and
  arrivals drawn anew, in place of a client's own, move the rate at saturation by a tenth.
- Twelve files more, of eleven laboratories that were not there, were predicted blind on 2026-11-30, 297 loads of L4,
  L40S, H20, H100, H100 NVL, B200, MI300X, MI355X, RTX 3090, 4090, 5090, PRO 4500 and PRO 6000 and a GB10: six models
  in four bits by vLLM 0.30 and SGLang 0.5.21 on the GB10, Qwen3.6-35B from one client to a hundred on an H100 NVL,
  GLM-5.1 with prefill and decode apart on 16 and 32 MI300X, Kimi-K2.5 in INT4 over four MI355X, NVIDIA's containers
  of Nemotron on an RTX 5090. All ran. Throughput 10 % in the median of 212 figures, TTFT 20 % of 150, TPOT 12 % of
  251, E2E 13 % of 156; ranges of 90 % held 91, 94 and 90 %. Since then four loads whose prompts a cache held are left
  out and ten are shown only, and settings that two pages state are written. What came to light: a GB10 counts as a
  small GPU in vLLM before 0.33, with steps of 2,048 tokens; experts in four bits have half the simulated pace on
  AMD's GPUs; checkpoints in NVFP4 of Qwen3.6 and Qwen3.8 keep 8 bits where 16 are simulated; empty rows of a graph
  cost nothing with Marlin's experts in vLLM 0.30; what a GPU does while its host launches is added where it hides;
  logs count rooms of models with windows by requests.
- Fourteen files more, of fourteen laboratories that were not there, were predicted blind on 2026-11-30, 107 loads of
  A100 in three kinds, H100, H200, B200, MI300X, MI355X, RTX 3090, 4090 and PRO 6000: gpt-oss-20b with 50 to 6,400
  clients on an H100, Nemotron 3 Nano over 16 H200 with prefill and decode together and apart, GLM-5.3-Flash with its
  drafts over two and four B200, Kimi-K3 over eight MI355X, Gemma 4 and two dense models on an MI300X, TensorRT-LLM
  beside vLLM and SGLang on five cards. 102 ran; contexts of Kimi-K3 that are divided among GPUs are refused, although
  vLLM 0.29 divided them. Throughput 9 % in the median of 77 figures, TTFT 17 % of 55, TPOT 10 % of 49; ranges of 90 %
  held 90, 91 and 94 %. Since then one checkpoint is in FP8, as its command says, and clients that were not in flight
  are left out. What came to light: one client's streams of gpt-oss-20b end at 10,000 tokens a second on an H100,
  whatever the batch; steps with drafts over linear attention under SGLang take half as long again as simulated;
  products in 8 bits of one row are too fast on an MI300X, those in 16 mostly are not; heads of 512 there; a freeze
  where many long answers of SGLang end together; what vLLM makes 8 bits while it loads is counted as 16 on AMD's
  GPUs.
- Twelve files more, of eleven laboratories, eight of which were not there, were predicted blind on 2026-11-30, 121
  loads of H100, H200, B200, MI300X, MI325X, MI355X, GH200, A100 and PRO 6000: DeepSeek-R1 under TensorRT-LLM 1.2 and
  1.3 and SGLang on eight B200, DeepSeek-V4-Pro, GLM-5.2, GLM-5.3-Flash and Kimi-K2.6 under SGLang on AMD's GPUs,
  DeepSeek-V4-Flash with prompts of 131,072 tokens on eight H100, Qwen3.8-27B with and without drafts, Apertus 70B
  with drafts by Apertus 8B, Qwen3-Next and two small models at rates. 115 ran. Throughput 9 % in the median of 112
  figures, TTFT 38 % of 92, TPOT 12 % of 113; ranges of 90 % held 92, 76 and 92 %. Since then answers that end by
  themselves have a spread, chunks, seats and a share of memory that servers must have had are written, and what
  prefix caches held is shown only: 9, 33 and 11 %; 93, 85 and 92 %. What came to light: a step of DeepSeek without
  graphs under TensorRT-LLM on B200 takes half as long on another host than InferenceX's, and graphs in pieces could
  not be said; products of FP8 by blocks of one row are twice too slow on an MI300X under SGLang of mid-2026, where its
  prompts of sparse attention are twice too fast, as on MI325X; decodes of latent attention by Triton read a long
  context at a tenth of the rate on AMD's GPUs; few sequences over four and eight MI355X are a fifth too slow;
  Qwen3.5's short prompts start sooner on servers under vLLM; drafts that run launch by launch cost twice as much on
  a GH200.
- Eleven files more, of eight laboratories that were not there, were predicted blind on 2026-11-30, 35 loads of H100,
  MI300X, Arc Pro B70, Strix Halo, GB10, RTX 3090 and 5090, most with one client: Llama-3.1-8B's size by TensorRT-LLM
  0.20 and 0.21 up to 250 clients, Qwen3.8-27B with and without drafts and with prompts of up to 200,000 tokens, a
  35B-A3B under vLLM on Strix Halo, llama.cpp on one and two RTX 3090, DeepSeek-V4-Flash on one MI300X. 32 ran.
  Throughput 17 % in the median of 18 figures, TTFT 14 % of 10, TPOT 22 % of 14, E2E 15 % of 17; ranges of 90 % held
  94, 100 and 86 %. Since then shares of accepted drafts are written as chances of each, TensorRT-LLM's backend is
  PyTorch's with graphs, which could not be said, and prompts of 20,000 tokens have a budget: 17, 14, 18 and 18 %; 95,
  100 and 86 %. What came to light: llama.cpp's tensors split over two cards are priced as its older split of rows;
  its decodes of 8B in four bits are a fifth too slow on an RTX 3090; experts in AWQ run at a tenth of the bandwidth
  on Strix Halo under vLLM; products in FP8 of one row take as long as in BF16 under TensorRT-LLM 0.21.
- Eleven files more, of eleven laboratories, ten of which were not there, were predicted blind on 2026-11-30, 190 loads
  of A100, L40S, B300, MI355X, GB10, RTX 4090, 5090 and 6000 Ada, R9700 and an M3 Pro: Hy4-preview in MXFP8 and GLM-5.3
  under SGLang with and without drafts, Qwen3.8-27B in three formats on an A100 and over eight RTX 4090, Qwen2-7B with
  prompts in chunks, whole and apart over two, Qwen3-8B in three formats up to 256 clients, Nemotron 3 Nano under
  TensorRT-LLM 1.3, llama.cpp and Ollama on a Mac. 189 ran. Throughput 11 % in the median of 147 figures, TTFT 23 % of
  130, TPOT 9 % of 133, E2E 8 % of 69; ranges of 90 % held 88, 83 and 94 %. Since then clients of one file begin one
  after another, which could not be said, a prompt of another has a budget, slots of the Mac are as many as its clients,
  and few rows of a Mac are multiplied one by one: 14, 19, 9 and 9 %; 86, 93 and 93 %. What came to light: on Macs that
  swap, two to nine clients are predicted half as fast again as they are or more, where wrong slots had hidden it;
  all-reduces over PCIe take four to five times as long between two and four R9700 as between V100s, whose times they
  borrow; drafts of Hy4-preview take a fifth longer than simulated, and twice as long where nothing is captured; GLM-5.3
  in FP8 on MI355X is faster with one client; tensor parallelism over two RTX 4090 whose host copies 1.8 GB/s; products
  by rows in FP8 on an MI300X stay a quarter too fast.
- Thirteen files more, of thirteen laboratories that were not there, were predicted blind on 2026-11-30, 130 loads of
  RTX 3090, 4090, 5060 Ti, 5090, PRO 6000 and A6000, GB10, Strix Halo, Arc Pro B60 and B70, V100 and A10 under vLLM,
  SGLang, llama.cpp, Ollama and TensorRT-LLM, from one client to 200, prompts of up to 131,071 tokens. 121 ran, and nine
  more once a key stood in its place and MXFP4 was known to run on Arc Pro. Throughput 17 % in the median of 51 figures,
  TTFT 29 % of 60, TPOT 17 % of 108, E2E 21 % of 9; ranges of 90 % held 76, 85 and 84 %. What came to light:
  llama.cpp's and Ollama's prompts of dense models were a third to a half too slow on RTX cards, as weights are no
  longer written out in 16 bit first; products of FP8 by blocks are slower on Ada, where nobody tuned their tiles; a
  prefix that all requests share is read once a step by vLLM 0.8 to 0.16, which is not simulated; experts of Ollama
  before llama.cpp sorted tokens on the GPU, Gemma under its own engine, long prompts on V100, drafts over two RTX
  3090, and small experts on Arc Pro.
- Twelve files more, of twelve laboratories, eight of which were not there, were predicted blind on 2026-12-01, 73
  loads of A100, H100, H200, GH200, GB300, RTX PRO 6000, MI300X and MI355X, none of which was left out: Kimi-K3 under
  vLLM and over 16 GPUs under TensorRT-LLM, GLM-5 to 5.3-Flash, MiniMax-M2.5 with the prompts of coding agents,
  MiMo-V2.5-Pro with prefill and decode apart, Qwen3.8-Flash-Next, DeepSeek-V3.2, Llama under LMDeploy and half in
  host memory. Throughput 21 % in the median of 48 figures, TTFT 15 % of 65, TPOT 16 % of 64, E2E 10 % of 19; ranges
  of 90 % held 69, 86 and 78 %. Since then five files say what their reports show of chunks, lengths, seats and
  drafts: 21, 15, 16 and 10 %; 75, 98 and 86 %. What came to light: GLM-5 under SGLang 0.5.9 on MI355X waits for its
  host half of the time; a table of n-grams in host memory costs first tokens a second and more; steps of drafts of
  MiMo on MI300X are 40 % shorter with its author's kernels; TensorRT-LLM's steps over four trays, LMDeploy's
  engine in PyTorch, and how many requests vLLM 0.6.4 runs beside weights in host memory.
- Eleven files more, of ten laboratories that were not there, were predicted blind on 2026-12-01, 277 loads of RTX
  A5000, A6000, 4080 Laptop and 5090, T4, PRO 6000, Macs, Strix Halo, GB10 and nine GPUs more under llama.cpp, Ollama,
  vLLM, SGLang and TGI, from one client to 128, prompts of up to 81,000 tokens. 261 ran; left are fifteen of
  data-parallel attention with MTP, and gpt-oss-20b on an M1, where it does not fit by the simulation. Throughput 18 %
  in the median of 213 figures, TTFT 22 % of 88, TPOT 15 % of 71, E2E 14 % of 78; ranges of 90 % held 84, 88 and 90 %.
  What came to light: requests whose answers have one length leave llama.cpp's slots in order, so that few clients of
  many slots are computed together; its sampling on the host takes two to nine times as long a sequence on some hosts;
  one client of llama.cpp on NVIDIA's cards is too slow by 0.4 to 2 ms a token; long prompts on an M5 Max are too fast.

calibration/LOG.md says what moved.
"""


def unseen_page(validation: Validation, date: str) -> str:
    """Return the page as Markdown.

    Args:
        validation: Validation of this source only.
        date: Date of the page, as shown.

    Raises:
        ProfileError: A file of reports is invalid.
    """
    predictions = validation.predictions
    summary = validation.summary
    parts = [
        _HEAD.format(version=__version__, date=date, covered=summary["covered"], points=summary["points"]),
        _section("All", predictions, lambda _: "all", "points"),
        _section("By report", predictions, lambda point: point.label.partition(":")[0], "report"),
        _section("By engine", predictions, _engine, "engine"),
        _section("By GPU", predictions, lambda point: point.hardware, "GPU"),
        _section("By kind of load", predictions, _load, "load"),
        _rooms(summary["memory"]),
        _not_run(summary["not_covered"]),
        _excluded(read_exclusions()),
    ]
    return "\n".join(parts)


def _engine(point: MeasuredPoint) -> str:
    return f"{point.engine} {'.'.join(point.version.split('.')[:2])}"


def _load(point: MeasuredPoint) -> str:
    if point.load_kind == "concurrency":
        requests = point.scenario["workload"]["num_requests"]
        return "all sent to a server at once" if point.load >= requests > 1 else "clients of a server"
    return {"rate": "Poisson", "batch": "a batch in process", "offline": "all queued in process"}[point.load_kind]


def _section(title: str, predictions: Sequence[Prediction], name_of: Callable[[MeasuredPoint], str], name: str) -> str:
    groups = grouped(predictions, **{name: name_of})
    groups = sorted(groups, key=lambda group: str(group[name]))
    lines = [_row([name, "points", "run", *METRICS]), _row(["---"] * (3 + len(METRICS)))]
    for group in groups:
        cells = [str(group[name]), str(group["points"]), str(group["covered"])]
        lines.append(_row([*cells, *(_cell(group, metric) for metric in METRICS)]))
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(group: Mapping[str, Any], metric: str) -> str:
    shown = [(group["metrics"], ""), (group["shown_only"], "*")]
    cells = [
        f"{100 * errors['median_ape']:.0f} / {100 * errors['p90_ape']:.0f} %, {100 * errors['bias']:+.0f} % "
        f"({errors['points']}){mark}"
        for figures, mark in shown
        if (errors := figures.get(metric)) is not None
    ]
    return "; ".join(cells)


def _rooms(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        _row(["log", "engine", "GPU", "model", "logged, GiB", "planned, GiB", "of the KV", "of the GPU"]),
        _row(["---"] * 8),
    ]
    for row in rows:
        cells = [str(row["label"]), f"{row['engine']} {row['version']}", str(row["hardware"]), str(row["model"])]
        sizes = [f"{row['measured_kv_gib']:.2f}", f"{row['predicted_kv_gib']:.2f}"]
        errors = [f"{100 * row['error_of_kv']:+.1f} %", f"{100 * row['error_of_gpu']:+.1f} %"]
        lines.append(_row([*cells, *sizes, *errors]))
    return "## KV cache size\n\n" + "\n".join(lines) + "\n"


def _not_run(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "## What could not be run\n\nNothing.\n"
    return "## What could not be run\n\n" + "\n".join(f"- {row['points']}: {row['reason']}." for row in rows) + "\n"


def _excluded(rows: Sequence[tuple[str, Excluded]]) -> str:
    lines = [f"- {report}: {row.what}: {row.why}." for report, row in rows]
    return "## What the reports hold beside, and why it is left out\n\n" + "\n".join(lines) + "\n"
