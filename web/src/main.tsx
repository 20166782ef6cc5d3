import { render } from 'preact';
import { takeKeyFromAddress } from './api/key';
import { App } from './app';
import { Play } from './play/play';
import { startTheme } from './shell/theme';
import './styles/base.css';
import './styles/controls.css';
import './styles/pages.css';

takeKeyFromAddress();
startTheme();
const play = new Play();
window.addEventListener('pagehide', () => play.leave());
const place = document.getElementById('app');
if (place) {
  place.replaceChildren();
  render(<App play={play} />, place);
}
void play.load();
